"""Check of options: each one that a scheme takes moves something, or is refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from inspect import Parameter, signature
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_posenc.checks.case import Case
from hf_posenc.checks.definition import forward_at
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.registry import register_check
from hf_posenc.errors import PosEncError, PositionOutOfTable
from hf_posenc.schemes.spec import plan

FAR, FEW = 2**14 - 8, 16  # a text across a power of two, where what goes in steps has one
TIMES = (2, 8, 0.5, 0.125)  # values to try, of what an option is
INSTEAD_OF_NONE = (1, 2, 3, 8, 0.5, 0.25)


@register_check("options", costly=True)
def every_option_counts(pair: Case) -> Deviation:
    """For each option, one of a few other values at least moves what is read or learned, or is refused.

    Read are texts of half the trained length, of that and of four times that, one far out, and two in training. Lists
    are not tried: their form is the scheme's own. The value is the number of options of which every value is taken and
    none counts.
    """
    usual = list(heard(pair))
    idle = [
        name
        for name, tried in others(pair).items()
        if tried and not any(counts(usual, other(pair, name, value)) for value in tried)
    ]
    return pair.gap("options", float(len(idle)), ", ".join(idle) or "no option")


def others(pair: Case) -> dict[str, list[Any]]:
    """Values to try, by option of the parts of a scheme; none of those that were given."""
    found: dict[str, list[Any]] = {}
    for cls, given in plan(pair.scheme).parts:
        hints = get_type_hints(cls.__init__, include_extras=True)
        for option in list(signature(cls.__init__).parameters.values())[2:]:  # after self and geometry
            if option.name not in given and option.name not in pair.options and option.default is not Parameter.empty:
                found[option.name] = list(values(hints[option.name], option.default))
    return found


def values(hint: Any, default: Any) -> Iterator[Any]:
    """Values of a type that are not the default."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        yield from (choice for choice in parts if choice != default)
    elif origin is Annotated:
        yield from values(parts[0], default)
    elif parts:
        yield from (value for part in parts for value in values(part, default))
    elif hint is bool:
        yield not default
    elif hint in (int, float):
        number = isinstance(default, (int, float))
        tried = [hint(default * by) for by in TIMES] if number else map(hint, INSTEAD_OF_NONE)
        yield from (value for value in tried if value != default)


def other(pair: Case, name: str, value: Any) -> Case:
    """The pair with one option more."""
    twin = copy.copy(pair)
    twin.options = {**pair.options, name: value}
    return twin


def counts(usual: list[Any], pair: Case) -> bool:
    """Whether a pair differs from what is usual in anything that is heard of it, or is refused."""
    try:
        return any(not _same(one, two) for one, two in zip(usual, heard(pair), strict=True))
    except PosEncError:
        return True


def heard(pair: Case) -> Iterator[Any]:
    """Shapes of what is learned, and readings ``[1, token, width]``; None where a text is refused."""
    with pair.patched() as model:
        yield {name: weight.shape for name, weight in model.named_parameters() if "posenc." in name}
        for length in (pair.trained // 2, pair.trained, 4 * pair.trained):
            yield _read(model, length)
        yield _read(model, FEW, start=FAR)
        model.train()
        try:
            for length in (pair.trained // 2, 4 * pair.trained):
                yield _read(model, length)
        finally:
            model.eval()


def _read(model: PreTrainedModel, length: int, start: int = 0) -> Tensor | None:
    with suppress(PositionOutOfTable):
        return forward_at(model, random_tokens(model, length), start)
    return None


def _same(one: Any, two: Any) -> bool:
    return torch.equal(one, two) if isinstance(one, Tensor) and isinstance(two, Tensor) else one is two or one == two
