"""Registry of schemes by name. Records are read without importing torch; classes are imported on demand.

A scheme is registered by its decorator, whose arguments are literals; the rest of its record is read from the class.
The records of the built-in schemes are shipped as `schemes/records.json` (`python -m hf_posenc.schemes.registry` writes
it, a test compares), so that listing them reads one file. Third parties register by the same decorator, or by an entry
point of the group ``hf_posenc.schemes`` that names their class.

A record names its class by a string, so that `hf-posenc list` does not import torch: it takes 0.7 s, and importing the
classes of all schemes takes 3 s more (``python -X importtime -c "import hf_posenc"``: 5 ms).
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Container
from dataclasses import asdict, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import TYPE_CHECKING, TypeVar

from hf_posenc.core.plugins import load_entry_points
from hf_posenc.core.record import CachedKeys, SchemeRecord
from hf_posenc.core.source_digest import source_digest
from hf_posenc.errors import NameNotAllowed, UnknownScheme, WrongKind, nearest, shown
from hf_posenc.schemes.make_record import has_parameters, record_of

if TYPE_CHECKING:
    from hf_posenc.schemes.base import Scheme

GROUP = __name__.rpartition(".")[0]
RECORDS = Path(__file__).parent / "records.json"
NAME = re.compile(r"[a-z0-9_][a-z0-9_-]{0,63}")  # can be composed by "+", and written in a command or a file name

S = TypeVar("S", bound="type[Scheme]")


_SCHEMES: dict[str, SchemeRecord] = {}
_CLASSES: dict[str, type[Scheme]] = {}
_UNBUILT: set[str] = set()  # names of schemes that were not built yet to find out whether they have parameters


def register_scheme(
    name: str,
    *,
    aliases: tuple[str, ...] = (),
    zero_shot: bool = False,
    cache: CachedKeys = "final",
    paper: str = "",
) -> Callable[[S], S]:
    """Register a `Scheme` subclass under ``name``, as the decorator of the class.

    The ``needs_…`` attributes say where the scheme is defined, and its parameters whether it is learned.

    Args:
        name: name in the literature, 1 to 64 characters of a-z, 0-9, _ and -.
        aliases: other names of the scheme.
        zero_shot: whether a pretrained RoPE model can use it without training.
        cache: what the KV cache holds: ``"final"`` keys, ``"copies"`` (one per region), ``"heads"`` (one per query
            head) or ``"raw"`` (rotated for each query).
        paper: arXiv id or address.

    Raises:
        NameNotAllowed: the name or an alias belongs to another scheme, or cannot be written on a command line.
        WrongKind: the decorated object is no `Scheme` subclass.
    """
    for each in (name, *aliases):
        if not isinstance(each, str) or not NAME.fullmatch(each):
            raise NameNotAllowed(
                f"A scheme's name has 1 to 64 of a-z, 0-9, _ and -, got {shown(each)}. Choose such a name."
            )

    def decorate(cls: S) -> S:
        if not (inspect.isclass(cls) and hasattr(cls, "replaces_host")):
            raise WrongKind(f"A scheme is a subclass of hf_posenc.Scheme, got {shown(cls)}. Derive it from that.")
        record = record_of(cls, name, aliases=aliases, zero_shot=zero_shot, cache=cache, paper=paper)
        for taken in (name, *aliases):
            owner = _by_name(_registered()).get(taken)  # without plugins: this may be a plugin during its import
            if owner is not None and owner.target != record.target:
                raise NameNotAllowed(
                    f"The scheme name {taken!r} belongs to {owner.target}. Register under another name."
                )
        shipped = _shipped().get(name)
        if shipped is not None and shipped.target == record.target:
            record = replace(record, learned=shipped.learned)
        else:
            _UNBUILT.add(name)
        _SCHEMES[name], _CLASSES[name] = record, cls
        cls.record = record
        source_digest(cls)  # now: the file may be edited while the class is in memory
        return cls

    return decorate


def list_schemes() -> list[SchemeRecord]:
    """Records of all schemes: the built-in ones, then those of third parties, each group in alphabetical order."""
    built_in = _shipped()
    return sorted(_with_plugins().values(), key=lambda record: (record.name not in built_in, record.name))


def scheme_record(name: str) -> SchemeRecord:
    """The record of a scheme, by name or alias.

    Raises:
        UnknownScheme: nothing is registered under that name.
    """
    records = _by_name(_with_plugins())
    if not isinstance(name, str) or name not in records:
        advice = (
            advice_on_options(name, records)
            or f"{nearest(name, records)} `hf-posenc list` shows all of them; --import FILE adds your own."
        )
        raise UnknownScheme(f"No scheme is called {shown(name)}.{advice}")
    return records[name]


def advice_on_options(name: object, records: Container[str]) -> str:
    """Advice for ``yarn:beta_fast=16``, which only comparisons accept; empty for other names."""
    scheme, colon, words = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not colon or scheme not in records:
        return ""
    options = [word.strip() for word in words.split(",")]
    in_words = " ".join(f"--option {word}" for word in options)
    return f" Name {scheme!r}, and pass {', '.join(options)} apart ({in_words})."


def scheme_class(name: str) -> type[Scheme]:
    """The class of a scheme, by name or alias; imported if necessary."""
    record = scheme_record(name)
    if record.name not in _CLASSES:
        module, _, qualname = record.target.partition(":")
        _CLASSES[record.name] = getattr(import_module(module), qualname)
    return _CLASSES[record.name]


def _by_name(records: dict[str, SchemeRecord]) -> dict[str, SchemeRecord]:
    return {name: record for record in records.values() for name in (record.name, *record.aliases)}


def _with_plugins() -> dict[str, SchemeRecord]:
    load_entry_points(GROUP, _accept)
    while _UNBUILT:
        name = _UNBUILT.pop()
        if (cls := _CLASSES.get(name)) is not None:
            _SCHEMES[name] = cls.record = replace(_SCHEMES[name], learned=has_parameters(cls))
    return _registered()


def _accept(name: str, plugin: object) -> None:
    """Register the class of an entry point under the entry's name, unless a decorator has registered it."""
    registered = inspect.ismodule(plugin) or (inspect.isclass(plugin) and "record" in vars(plugin))
    if not registered:
        register_scheme(name)(plugin)  # type: ignore[type-var]  # `register_scheme` validates it


def _registered() -> dict[str, SchemeRecord]:
    return {**_shipped(), **_SCHEMES}


@lru_cache(maxsize=1)
def _shipped() -> dict[str, SchemeRecord]:
    if not RECORDS.exists():  # while the file is being generated
        return {}
    rows = json.loads(RECORDS.read_text(encoding="utf-8"))
    return {row["name"]: _record(row) for row in rows}


def _record(row: dict) -> SchemeRecord:
    lists = {"aliases": tuple(row["aliases"]), "needs": tuple(row["needs"])}
    return SchemeRecord(**{**row, **lists, "options": {k: tuple(v) for k, v in row["options"].items()}})


def built_in_records() -> list[dict]:
    """Records of all modules in `hf_posenc.schemes`, made from their classes."""
    for module in walk_packages([str(RECORDS.parent)], "hf_posenc.schemes."):
        import_module(module.name)
    records = sorted((r for r in _SCHEMES.values() if r.shipped), key=lambda r: r.name)
    return [json.loads(json.dumps(asdict(replace(r, learned=has_parameters(_CLASSES[r.name]))))) for r in records]


if __name__ == "__main__":
    import hf_posenc.schemes.registry as canonical  # this file is __main__, and decorators write to the other module

    RECORDS.write_text(json.dumps(canonical.built_in_records(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
