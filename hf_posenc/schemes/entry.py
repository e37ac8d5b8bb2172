"""A line of a comparison: a scheme, its options, and what tables call it.

yarn · pi:factor=4 · self_extend:group=8,window=128 · unpatched          (the last is the unpatched model)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hf_posenc.core.lengths import tokens
from hf_posenc.errors import BadComparison, shown

UNPATCHED = "unpatched"
IN_TOKENS = ("target_length", "trained_length")
LENGTHS = ("factor", *IN_TOKENS)
"""Options that `hf_posenc.patch_model` takes for every scheme."""

BETWEEN = re.compile(r"[,;](?![^\[\]{}]*[\]}])")  # commas, but those inside a list or mapping


@dataclass(frozen=True)
class Entry:
    """A line of a comparison.

    Attributes:
        label: what tables call it.
        scheme: a name or a composition; None is the unpatched model.
        options: of the scheme, and ``factor`` or ``target_length`` where every length shall have the same.
    """

    label: str
    scheme: str | None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def lengths(self) -> dict[str, Any]:
        """The options that set the lengths of the scheme."""
        return {name: value for name, value in self.options.items() if name in LENGTHS}

    @property
    def own_options(self) -> dict[str, Any]:
        """The options of the scheme itself."""
        return {name: value for name, value in self.options.items() if name not in LENGTHS}

    def settings(self) -> dict[str, Any]:
        """The settings that results depend on: aliases are replaced by names, defaults spelled out, the label left out.

        Raises:
            PosEncError: the scheme or one of its options is refused.
        """
        from hf_posenc.schemes.spec import plan

        scheme = None if self.scheme is None else plan(self.scheme, self.own_options).with_defaults().to_json()
        lengths = dict(self.lengths)
        if type(lengths.get("factor")) is int:
            lengths["factor"] = float(lengths["factor"])
        return {"scheme": scheme, "lengths": lengths}

    def needs_training(self, *, rotary: bool = True) -> bool:
        """Whether the scheme, or a part of it, is not meant for weights that were trained without it.

        Args:
            rotary: whether the model rotates. One that does not never saw a rotation in the place of its positions.
        """
        from hf_posenc.schemes.registry import scheme_class, scheme_record

        parts = self.scheme.split("+") if self.scheme else ()
        return any(not scheme_record(n).zero_shot or (not rotary and scheme_class(n).replaces_host) for n in parts)


Given: TypeAlias = "str | tuple[str, dict[str, Any]] | Entry"


def entries_of(given: str | Iterable[Given]) -> list[Entry]:
    """Entries, each once, checked against the registry.

    Args:
        given: words as on the command line, ``(scheme, options)``, or entries.

    Raises:
        BadComparison: there is none, two share a label, or a word cannot be read.
        PosEncError: a scheme or option is refused.
    """
    found: dict[str, Entry] = {}
    for item in [given] if isinstance(given, str) else several(given):
        for entry in read_words(item) if isinstance(item, str) else [entry_of(item)]:
            entry.settings()
            if found.setdefault(entry.label, entry) != entry:
                raise BadComparison(f"Two entries are called {entry.label!r}. Give them different labels.")
    if not found:
        raise BadComparison("There is no scheme to compare. Name some, for example yarn,self_extend,unpatched.")
    return list(found.values())


def several(given: Any) -> Iterable[Given]:
    """The elements of a list of entries.

    Raises:
        BadComparison: it is none, or something in it is neither words, a pair nor an entry.
    """
    if isinstance(given, (bytes, Mapping)) or not isinstance(given, Iterable):
        raise BadComparison(f"The schemes to compare are words or a list, got {shown(given)}. Pass 'yarn,unpatched'.")
    found = list(given)
    for item in found:
        pair = isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], Mapping)
        if not pair and not isinstance(item, (str, Entry)):
            raise BadComparison(
                f"There is no entry {shown(item)}. Give a name, such as 'yarn', or a pair, ('yarn', {{'factor': 2}})."
            )
    return found


def entry_of(given: tuple[str, dict[str, Any]] | Entry) -> Entry:
    """An entry from a scheme and its options."""
    if isinstance(given, Entry):
        return given
    scheme, options = given
    words = ",".join(f"{name}={json.dumps(value)}" for name, value in options.items())
    return Entry(f"{scheme}:{words}" if words else scheme, None if scheme == UNPATCHED else scheme, dict(options))


def read_words(text: str) -> list[Entry]:
    """``"yarn,self_extend:group=8,window=128"`` as two entries: what has ``=`` and no ``:`` belongs to the one before.

    Raises:
        BadComparison: an option has no scheme, or no value.
    """
    words: list[list[str]] = []
    for part in filter(None, (part.strip() for part in BETWEEN.split(text))):
        name, colon, option = part.partition(":")
        if "=" not in name:
            words.append([name, option] if colon else [name])
        elif words:
            words[-1].append(part)
        else:
            raise BadComparison(f"Option {part!r} comes before any scheme. Write for example yarn:beta_fast=16.")
    return [read_word(name, options) for name, *options in words]


def read_word(scheme: str, words: Sequence[str]) -> Entry:
    """One scheme and its options as words."""
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise BadComparison(
                f"{scheme} has an option {word!r} without a value. Write for example yarn:beta_fast=16."
            )
        if scheme == UNPATCHED:
            raise BadComparison(f"{UNPATCHED} is the unmodified model and takes no {name!r}. Leave it out.")
        options[name] = value_of(name, value)
    label = f"{scheme}:{','.join(words)}" if words else scheme
    return Entry(label, None if scheme == UNPATCHED else scheme, options)


def value_of(name: str, written: str) -> Any:
    """The value of an option: a length also in thousands, ``"8k"``; any other as JSON, or as text where it is none.

    Raises:
        LengthContradiction: a length is none.
    """
    value = json_or_text(written)
    return tokens(value, name) if name in IN_TOKENS and isinstance(value, str) else value


def json_or_text(value: str) -> Any:
    """``"128"`` as 128, ``"true"`` as True, ``"dim"`` as itself."""
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
