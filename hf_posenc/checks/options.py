"""Check of options: every option of a scheme has an effect or is refused.

An option has an effect if it changes outputs, learned parameters, or the size of the KV cache.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from inspect import Parameter, signature
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from hf_posenc.checks.case import Case
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.life_cycle import same
from hf_posenc.checks.reference_model import forward_from
from hf_posenc.checks.registry import Measured, register_check
from hf_posenc.errors import PosEncError, PositionOutOfTable
from hf_posenc.schemes.spec import plan

FAR_START, FAR_LENGTH = 2**14 - 8, 16  # across a power of two, where schemes that change in steps change
MULTIPLES = (2, 8, 0.5, 0.125)  # of an option's default
NUMBERS = (1, 2, 3, 8, 0.5, 0.25)  # for options whose default is None


@register_check("options", slow=True, trained_length=64)  # with less, too few channel pairs rotate once in it
def every_option_has_effect(case: Case) -> Measured:
    """For each option, at least one other value changes an output, a parameter's shape or the KV cache, or is refused.

    Outputs are measured for texts of half, one and four times the trained length, for a text at position 16,376, and
    for two texts in training mode. A cache is compared by the count of its numbers. Options that are
    lists are skipped. The value is the number of options without effect.
    """
    baseline = list(observations(case))
    without_effect = [
        name
        for name, tried in options_to_try(case).items()
        if tried and not any(has_effect(baseline, with_option(case, name, value)) for value in tried)
    ]
    return float(len(without_effect)), ", ".join(without_effect) or "every option has an effect"


def options_to_try(case: Case) -> dict[str, list[Any]]:
    """Values to try for each option of a scheme's parts, except options that the case sets."""
    values: dict[str, list[Any]] = {}
    for cls, set_options in plan(case.scheme).parts:
        hints = get_type_hints(cls.__init__, include_extras=True)
        for option in list(signature(cls.__init__).parameters.values())[2:]:  # after self and geometry
            if option.name not in (*set_options, *case.options) and option.default is not Parameter.empty:
                values[option.name] = list(alternative_values(hints[option.name], option.default))
    return values


def alternative_values(hint: Any, default: Any) -> Iterator[Any]:
    """Values of a type hint that differ from the default."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        yield from (choice for choice in parts if choice != default)
    elif origin is Annotated:
        yield from alternative_values(parts[0], default)
    elif parts:
        yield from (value for part in parts for value in alternative_values(part, default))
    elif hint is bool:  # a default of None stands for either
        yield from (value for value in (False, True) if value is not default)
    elif hint in (int, float):
        number = isinstance(default, (int, float))
        tried = [hint(default * factor) for factor in MULTIPLES] if number else map(hint, NUMBERS)
        yield from (value for value in tried if value != default)


def with_option(case: Case, name: str, value: Any) -> Case:
    """The case with one more option."""
    changed = copy.copy(case)
    changed.options = {**case.options, name: value}
    return changed


def has_effect(baseline: list[Any], case: Case) -> bool:
    """Whether a case's observations differ from the baseline's, or the case is refused."""
    try:
        return any(not same(one, two) for one, two in zip(baseline, observations(case), strict=True))
    except PosEncError:
        return True


def observations(case: Case) -> Iterator[Any]:
    """Shapes of learned parameters, size of a KV cache, then outputs ``[1, token, width]`` of several texts.

    A refused text gives None.
    """
    with case.patched() as model:
        yield {name: weight.shape for name, weight in model.named_parameters() if "posenc." in name}
        yield _cached_numbers(model, case.trained_length // 2) if case.causal else None
        for length in (case.trained_length // 2, case.trained_length, 4 * case.trained_length):
            yield _forward_or_none(model, length)
        yield _forward_or_none(model, FAR_LENGTH, start=FAR_START)
        model.train()
        try:
            for length in (case.trained_length // 2, 4 * case.trained_length):
                yield _forward_or_none(model, length)
        finally:
            model.eval()


def _forward_or_none(model: PreTrainedModel, length: int, start: int = 0) -> Tensor | None:
    with suppress(PositionOutOfTable):
        return forward_from(model, random_tokens(model, length), start)
    return None


def _cached_numbers(model: PreTrainedModel, length: int) -> int | None:
    """Count of numbers in a KV cache after a text; None if the text is refused."""
    cache = DynamicCache(config=model.config)
    with suppress(PosEncError):
        forward(model, random_tokens(model, length), cache=cache)
        return sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    return None
