"""Schemes and adapters by name. Records answer without torch; classes load when they are asked for.

A scheme is registered by its decorator, whose arguments are literals and the only place its record is written. The
records of the built-in schemes are shipped as `schemes/records.json` (`python -m hf_posenc.schemes.registry` writes
it, a test compares), so that listing them reads one file. Third parties register by the same decorator, or by an entry
point of the group ``hf_posenc.schemes`` (or ``hf_posenc.adapters``) that names their class.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import TYPE_CHECKING, TypeVar, get_type_hints

from hf_posenc.core.plugins import load_entry_points
from hf_posenc.core.record import ALL_MODELS, SchemeRecord
from hf_posenc.errors import (
    NameNotAllowed,
    UnknownScheme,
    WrongKind,
    nearest,
    shown,
)

if TYPE_CHECKING:
    from hf_posenc.schemes.base import Scheme

RECORDS = Path(__file__).parent / "records.json"
NAME = re.compile(r"[a-z0-9_][a-z0-9_-]{0,63}")

S = TypeVar("S", bound="type[Scheme]")


_SCHEMES: dict[str, SchemeRecord] = {}
_CLASSES: dict[str, type[Scheme]] = {}


def register_scheme(
    name: str,
    *,
    aliases: tuple[str, ...] = (),
    models: tuple[str, ...] = ALL_MODELS,
    undefined: str = "",
    learned: bool = False,
    zero_shot: bool = False,
    cache: str = "final",
    paper: str = "",
) -> Callable[[S], S]:
    """Register a `Scheme` subclass under ``name``; see `SchemeRecord` for the arguments.

    Raises:
        NameNotAllowed: the name or an alias belongs to another scheme, or cannot be written on a command line.
        WrongKind: what is registered is no `Scheme` subclass.
    """
    for one in (name, *aliases):
        check_name(one)

    def decorate(cls: S) -> S:
        if not (inspect.isclass(cls) and hasattr(cls, "replaces_host")):
            raise WrongKind(f"A scheme is a subclass of hf_posenc.Scheme, got {shown(cls)}. Derive it from that.")
        text = inspect.getdoc(import_module(cls.__module__)) or inspect.getdoc(cls) or ""
        about = inspect.getdoc(cls) or ""
        record = SchemeRecord(
            name, aliases, models, undefined, learned, zero_shot, cls.recipe, cache, paper,
            title=text.partition("\n")[0], summary=_first_sentence(about), about=about, text=text,
            options=_options_of(cls), target=f"{cls.__module__}:{cls.__qualname__}",
        )  # fmt: skip
        for taken in (name, *aliases):
            owner = _names_of(_registered()).get(taken)  # not the plugins: this may be one of them, half imported
            if owner is not None and owner.target != record.target:
                raise NameNotAllowed(
                    f"The scheme name {taken!r} belongs to {owner.target}. Register under another name."
                )
        _SCHEMES[name], _CLASSES[name] = record, cls
        cls.record = record
        return cls

    return decorate


def check_name(name: object) -> None:
    """Refuse names that could not be composed, written on a command line or into a file's name.

    Raises:
        NameNotAllowed: it has other characters, or too many.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise NameNotAllowed(
            f"A scheme's name has 1 to 64 of a-z, 0-9, _ and -, got {shown(name)}. Choose such a name."
        )


def list_schemes() -> list[SchemeRecord]:
    """All registered schemes: the built-in ones, then third parties', each group in alphabetical order."""
    built_in = _shipped()
    others = sorted(set(_all()) - set(built_in))
    return [_all()[name] for name in (*sorted(built_in), *others)]


def scheme_record(name: str) -> SchemeRecord:
    """The record of a scheme, by name or alias.

    Raises:
        UnknownScheme: nothing is registered under that name.
    """
    known = _by_name()
    if not isinstance(name, str) or name not in known:
        raise UnknownScheme(
            f"No scheme is called {shown(name)}.{nearest(name, known)} `hf-posenc list` shows all of them."
        )
    return known[name]


def scheme_class(name: str) -> type[Scheme]:
    """The class of a scheme, by name or alias, imported now if it was not."""
    record = scheme_record(name)
    if record.name not in _CLASSES:
        module, _, qualname = record.target.partition(":")
        _CLASSES[record.name] = getattr(import_module(module), qualname)
    return _CLASSES[record.name]


def _first_sentence(text: str) -> str:
    sentence, stop, _ = " ".join(text.split()).partition(". ")
    return sentence + stop.strip()


def _options_of(cls: type[Scheme]) -> dict[str, tuple[str, str]]:
    from hf_posenc.schemes.options import written

    hints = get_type_hints(cls.__init__, include_extras=True)
    parameters = list(inspect.signature(cls.__init__).parameters.values())[2:]  # after self and geometry
    return {p.name: (written(hints[p.name]), "" if p.default is p.empty else repr(p.default)) for p in parameters}


def _by_name() -> dict[str, SchemeRecord]:
    return _names_of(_all())


def _names_of(records: dict[str, SchemeRecord]) -> dict[str, SchemeRecord]:
    return {name: record for record in records.values() for name in (record.name, *record.aliases)}


def _all() -> dict[str, SchemeRecord]:
    load_entry_points("hf_posenc.schemes")
    return _registered()


def _registered() -> dict[str, SchemeRecord]:
    return {**_shipped(), **_SCHEMES}


@lru_cache(maxsize=1)
def _shipped() -> dict[str, SchemeRecord]:
    if not RECORDS.exists():  # while the file is being generated
        return {}
    rows = json.loads(RECORDS.read_text(encoding="utf-8"))
    return {row["name"]: _record(row) for row in rows}


def _record(row: dict) -> SchemeRecord:
    lists = {"aliases": tuple(row["aliases"]), "models": tuple(row["models"])}
    return SchemeRecord(**{**row, **lists, "options": {k: tuple(v) for k, v in row["options"].items()}})


def built_in_records() -> list[dict]:
    """The records of all modules in `hf_posenc.schemes`, freshly read off their decorators."""
    for module in walk_packages([str(RECORDS.parent)], "hf_posenc.schemes."):
        import_module(module.name)
    mine = [r for r in _SCHEMES.values() if r.target.startswith("hf_posenc.schemes.")]
    return [json.loads(json.dumps(asdict(r))) for r in sorted(mine, key=lambda r: r.name)]


if __name__ == "__main__":
    import hf_posenc.schemes.registry as canonical  # this file is __main__: decorators write to the other

    RECORDS.write_text(json.dumps(canonical.built_in_records(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
