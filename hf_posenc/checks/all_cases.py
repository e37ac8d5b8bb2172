"""Every combination of scheme and tiny model: the cases where the scheme is defined, and the refusals elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_posenc.checks.case import Case
from hf_posenc.checks.tiny_models import TINY_MODELS
from hf_posenc.errors import OptionOutOfRange, PosEncError, PositionOutOfTable, SchemeNotDefined
from hf_posenc.schemes.registry import list_schemes
from hf_posenc.schemes.spec import SchemeSpec, plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Refusal:
    """A scheme that is not defined for a tiny model.

    Attributes:
        model: name of the tiny model.
        scheme: name of the scheme.
        error: what `hf_posenc.patch_model` raised.
    """

    model: str
    scheme: str
    error: PosEncError


def longest_case(model: str | PreTrainedModel, scheme: SchemeSpec, **options: Any) -> Case:
    """Case at four times the trained length, or at the trained length if the scheme cannot be extended.

    Raises:
        PosEncError: the scheme cannot be applied to this model at either length.
    """
    case = Case(model, scheme, factor=4, **options)
    try:
        with case.patched():
            return case
    except (OptionOutOfRange, PositionOutOfTable):
        case = Case(model, scheme, factor=1, **options)
        with case.patched():
            return case


def cases(*schemes: SchemeSpec) -> list[Case]:
    """Cases of these schemes (default: all registered) on every tiny model for which they are defined."""
    return [found for found in _combinations(*schemes) if isinstance(found, Case)]


def refusals(*schemes: SchemeSpec) -> dict[tuple[str, str], PosEncError]:
    """Errors of the remaining combinations, by ``(model, scheme)``."""
    return {(one.model, one.scheme): one.error for one in _combinations(*schemes) if isinstance(one, Refusal)}


def _combinations(*schemes: SchemeSpec) -> Iterator[Case | Refusal]:
    for scheme in schemes or [record.name for record in list_schemes()]:
        for model in TINY_MODELS:
            try:
                yield longest_case(model, scheme)
            except SchemeNotDefined as error:
                yield Refusal(model, plan(scheme).name, error)
