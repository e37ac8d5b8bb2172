"""The types of scheme options, and their validation: one declaration in a signature, checked when a scheme is built."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from hf_posenc.errors import OptionOutOfRange, UnknownOption, nearest

if TYPE_CHECKING:
    from hf_posenc.schemes.base import Scheme

Positive = Annotated[float, Gt(0)]
AtLeastOne = Annotated[float, Ge(1)]
PositiveInt = Annotated[int, Gt(0)]
Base = Annotated[float, Gt(1)]
Fraction = Annotated[float, Gt(0), Le(1)]
UnitInterval = Annotated[float, Ge(0), Le(1)]
NotNegativeInt = Annotated[int, Ge(0)]
AtLeastTwo = Annotated[int, Ge(2)]
Share = Annotated[float, Gt(0), Lt(1)]
NotNegative = Annotated[float, Ge(0)]


def validated(cls: type[Scheme], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``cls``'s constructor, checked against its annotations; aliases become names.

    Raises:
        UnknownOption: the constructor has no such option.
        OptionOutOfRange: a value has the wrong type or lies outside its range.
    """
    from pydantic import ConfigDict, ValidationError, create_model

    named = {cls.option_aliases.get(k, k): v for k, v in options.items()}
    hints = get_type_hints(cls.__init__, include_extras=True)
    parameters = list(inspect.signature(cls.__init__).parameters.values())[2:]  # after self and geometry
    known = [p.name for p in parameters]
    for name in named:
        if name not in known:
            takes = f"It takes {', '.join(known)}." if known else "It takes no options."
            raise UnknownOption(f"Scheme {cls.record.name!r} has no option {name!r}.{nearest(name, known)} {takes}")
    fields: dict[str, Any] = {p.name: (hints[p.name], ... if p.default is p.empty else p.default) for p in parameters}
    model = create_model("Options", __config__=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False), **fields)
    try:
        checked = model(**named)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        rule = first["msg"][0].lower() + first["msg"][1:]
        raise OptionOutOfRange(
            f"Option {name!r} of scheme {cls.record.name!r}: {rule}, got {named.get(name)!r}. "
            f"`hf-posenc info {cls.record.name}` lists the valid ranges."
        ) from None
    return {name: getattr(checked, name) for name in named}


def written(hint: Any) -> str:
    """A type hint as a reader wants it: ``"number > 0 or None"``, ``"'dim' or 'rotations'"``."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join([written(parts[0]), *map(bound, parts[1:])])
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin in (Union, UnionType):
        return " or ".join(map(written, parts))
    if origin is not None and parts:
        return f"{origin.__name__} of {', '.join(map(written, parts))}"
    names = {float: "number", int: "whole number", bool: "True or False", str: "text", NoneType: "None"}
    return names.get(hint) or str(getattr(hint, "__name__", hint))


def bound(limit: Any) -> str:
    """A range as it is written: ``"> 0"``."""
    if isinstance(limit, Gt):
        return f"> {limit.gt}"
    if isinstance(limit, Ge):
        return f"≥ {limit.ge}"
    if isinstance(limit, Le):
        return f"≤ {limit.le}"
    if isinstance(limit, Lt):
        return f"< {limit.lt}"
    return str(limit)
