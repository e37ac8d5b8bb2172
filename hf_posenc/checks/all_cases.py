"""Every combination of scheme and tiny model for which the scheme is defined."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hf_posenc.checks.case import Case
from hf_posenc.checks.tiny_models import TINY_MODELS
from hf_posenc.errors import OptionOutOfRange, PositionOutOfTable, SchemeNotDefined
from hf_posenc.schemes.registry import list_schemes
from hf_posenc.schemes.spec import SchemeSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
    found = []
    for scheme in schemes or [record.name for record in list_schemes()]:
        for model in TINY_MODELS:
            with suppress(SchemeNotDefined):
                found.append(longest_case(model, scheme))
    return found
