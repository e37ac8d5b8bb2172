"""A line of a comparison: a scheme, its options, and its name in tables.

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

SEPARATOR = re.compile(r"[,;](?![^\[\]{}]*[\]}])")  # commas, except those inside a list or mapping


@dataclass(frozen=True)
class Entry:
    """A line of a comparison.

    Attributes:
        label: name in tables.
        scheme: a name or a composition; None is the unpatched model.
        options: options of the scheme; also ``factor`` or ``target_length``, to use the same value at every length.
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
        """The settings that results depend on, with names for aliases, with defaults, and without the label.

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
        """Whether the scheme, or a part of it, does not work with weights that were trained without it.

        Args:
            rotary: whether the model rotates queries and keys. Otherwise a scheme that replaces its positions needs
                training, too.
        """
        from hf_posenc.schemes.registry import scheme_class, scheme_record

        parts = self.scheme.split("+") if self.scheme else ()
        return any(not scheme_record(n).zero_shot or (not rotary and scheme_class(n).replaces_host) for n in parts)


Given: TypeAlias = "str | tuple[str, dict[str, Any]] | Entry"


def entries_of(given: str | Iterable[Given]) -> list[Entry]:
    """Entries without repetitions, checked against the registry.

    Args:
        given: words as on the command line, ``(scheme, options)``, or entries.

    Raises:
        BadComparison: there is no entry, two share a label, or a word cannot be parsed.
        PosEncError: a scheme or option is refused.
    """
    entries: dict[str, Entry] = {}
    for item in [given] if isinstance(given, str) else checked_items(given):
        for entry in read_words(item) if isinstance(item, str) else [entry_of(item)]:
            entry.settings()
            if entries.setdefault(entry.label, entry) != entry:
                raise BadComparison(f"Two entries are called {entry.label!r}. Give them different labels.")
    if not entries:
        raise BadComparison("There is no scheme to compare. Name some, for example yarn,self_extend,unpatched.")
    return list(entries.values())


def checked_items(given: Any) -> Iterable[Given]:
    """The elements of a list of entries.

    Raises:
        BadComparison: ``given`` is no list, or an element is neither words, a pair nor an entry.
    """
    if isinstance(given, (bytes, Mapping)) or not isinstance(given, Iterable):
        raise BadComparison(f"The schemes to compare are words or a list, got {shown(given)}. Pass 'yarn,unpatched'.")
    items = list(given)
    for item in items:
        pair = isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], Mapping)
        if not pair and not isinstance(item, (str, Entry)):
            raise BadComparison(
                f"There is no entry {shown(item)}. Give a name, such as 'yarn', or a pair, ('yarn', {{'factor': 2}})."
            )
    return items


def entry_of(given: tuple[str, dict[str, Any]] | Entry) -> Entry:
    """An entry from a scheme and its options."""
    if isinstance(given, Entry):
        return given
    scheme, options = given
    words = ",".join(f"{name}={json.dumps(value)}" for name, value in options.items())
    return Entry(f"{scheme}:{words}" if words else scheme, None if scheme == UNPATCHED else scheme, dict(options))


def read_words(text: str) -> list[Entry]:
    """Parse ``"yarn,self_extend:group=8,window=128"``: a word with ``=`` but no ``:`` is an option of the word before.

    Raises:
        BadComparison: an option has no scheme, or no value.
    """
    words: list[list[str]] = []
    for part in filter(None, (part.strip() for part in SEPARATOR.split(text))):
        name, colon, option = part.partition(":")
        if "=" not in name:
            words.append([name, option] if colon else [name])
        elif words:
            words[-1].append(part)
        else:
            raise BadComparison(f"Option {part!r} comes before any scheme. Write for example yarn:beta_fast=16.")
    return [read_word(name, options) for name, *options in words]


def read_word(scheme: str, words: Sequence[str]) -> Entry:
    """The entry of one scheme, whose options are words such as ``"group=8"``."""
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


def value_of(name: str, text: str) -> Any:
    """The value of an option, parsed as JSON or else kept as text. A length may be in thousands, ``"8k"``.

    Raises:
        LengthContradiction: the text of a length is no number of tokens.
    """
    value = json_or_text(text)
    return tokens(value, name) if name in IN_TOKENS and isinstance(value, str) else value


def json_or_text(value: str) -> Any:
    """Parse JSON, or keep the text: ``"128"`` gives 128, ``"true"`` True, and ``"dim"`` itself."""
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
