"""The types of scheme options, and their validation: declared in signatures, checked when a scheme is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import astuple
from functools import lru_cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from hf_posenc.errors import OptionOutOfRange, UnknownOption, nearest, shown

if TYPE_CHECKING:
    from pydantic import BaseModel

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

FLAG = "True or False"
SIGNS: dict[type, str] = {Gt: ">", Ge: "≥", Le: "≤", Lt: "<"}
LARGEST, SMALLEST = 1e18, 1e-12  # sizes of numbers: beyond them float32 overflows, or rounds every difference away
LARGEST_INT = 2**31 - 1  # whole numbers count tokens and rows
LONGEST_LIST = 1 << 16  # values; lists have at most one value per channel or layer
DEEPEST = 4  # nested lists
LONGEST_TEXT = 200  # characters; strings name choices and schemes


def validated(cls: type[Scheme], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``cls``'s constructor, checked against its annotations; aliases become names.

    Raises:
        UnknownOption: the constructor has no such option.
        OptionOutOfRange: a value has the wrong type or lies outside its range.
    """
    from pydantic import ValidationError

    named = {cls.option_aliases.get(k, k): v for k, v in options.items()}
    hints, model = option_model(cls.__init__)
    names = list(model.model_fields)
    for name, value in named.items():
        if name not in names:
            takes = f"It takes {', '.join(names)}." if names else "It takes no options."
            raise UnknownOption(
                f"Scheme {cls.record.name!r} has no option {shown(name)}.{nearest(name, names)} {takes}"
            )
        rule = broken_rule(value)
        if isinstance(value, bool) and FLAG not in written(hints[name]):
            rule = f"input should be a {written(hints[name])}"
        if rule:
            raise _refused(cls, name, rule, value)
    try:
        checked = model(**named)
    except ValidationError as error:
        first = max(error.errors(), key=lambda detail: len(detail["loc"]))  # the closest match of a union
        name = str(first["loc"][0])
        rule = first["msg"][0].lower() + first["msg"][1:]
        raise _refused(cls, name, rule, named.get(name)) from None
    return {name: getattr(checked, name) for name in named}


@lru_cache(maxsize=128)  # building a pydantic model takes longer than the rest of `patch_model`
def option_model(constructor: Callable[..., None]) -> tuple[dict[str, Any], type[BaseModel]]:
    """The annotations of a scheme's constructor, and the pydantic model that checks options against them."""
    from pydantic import ConfigDict, create_model

    hints = get_type_hints(constructor, include_extras=True)
    parameters = list(inspect.signature(constructor).parameters.values())[2:]  # after self and geometry
    fields: dict[str, Any] = {p.name: (hints[p.name], ... if p.default is p.empty else p.default) for p in parameters}
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return hints, create_model("Options", __config__=config, **fields)


def broken_rule(value: Any, depth: int = 0) -> str:
    """The rule for option values that ``value`` breaks, in words; empty if it breaks none."""
    if isinstance(value, (bool, NoneType)):
        return ""
    if isinstance(value, int):
        return "" if abs(value) <= LARGEST_INT else f"whole numbers should be at most {LARGEST_INT}"
    if isinstance(value, float):
        within = value == 0 or SMALLEST <= abs(value) <= LARGEST
        return "" if within else f"numbers should be finite, from {SMALLEST:g} to {LARGEST:g} in size or 0"
    if isinstance(value, str):
        return "" if len(value) <= LONGEST_TEXT else f"strings should have at most {LONGEST_TEXT} characters"
    if isinstance(value, (list, tuple)) and depth < DEEPEST:
        if len(value) > LONGEST_LIST:
            return f"lists should have at most {LONGEST_LIST} values"
        return next(filter(None, (broken_rule(item, depth + 1) for item in value)), "")
    return "input should be a number, a text, True, False, None, or a list of these"


def _refused(cls: type[Scheme], name: str, rule: str, value: Any) -> OptionOutOfRange:
    return OptionOutOfRange(
        f"Option {name!r} of scheme {cls.record.name!r}: {rule}, got {shown(value)}. "
        f"`hf-posenc info {cls.record.name}` lists the valid ranges."
    )


def written(hint: Any) -> str:
    """A type hint in words: ``"number > 0 or None"``, ``"'dim' or 'rotations'"``."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join([written(parts[0]), *map(bound, parts[1:])])
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin in (Union, UnionType):
        return " or ".join(map(written, parts))
    if origin is not None and parts:
        return f"{origin.__name__} of {', '.join(map(written, parts))}"
    names = {float: "number", int: "whole number", bool: FLAG, str: "text", NoneType: "None"}
    return names.get(hint) or str(getattr(hint, "__name__", hint))


def bound(limit: Any) -> str:
    """A limit in words: ``"> 0"``."""
    sign = SIGNS.get(type(limit))
    return str(limit) if sign is None else f"{sign} {astuple(limit)[0]}"
