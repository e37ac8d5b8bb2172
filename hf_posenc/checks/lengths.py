"""Check of lengths: a scheme runs up to its last position, and raises past it."""

from __future__ import annotations

from hf_posenc.checks.case import Case, position_limit
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.registry import register_check
from hf_posenc.errors import PositionOutOfTable


@register_check("length")
def runs_or_raises(case: Case) -> Deviation:
    """Texts of the trained length, one more and four times that give finite outputs; past its end a scheme raises.

    The value is the number of lengths at which neither happened.
    """
    with case.patched() as model:
        end = position_limit(model)
        lengths = {
            case.trained_length,
            case.trained_length + 1,
            4 * case.trained_length,
            *(() if end is None else (end, end + 1)),
        }
        invalid = []
        for length in sorted(lengths):
            past_end = end is not None and length > end
            try:
                valid = bool(forward(model, random_tokens(model, length)).isfinite().all()) and not past_end
            except PositionOutOfTable:
                valid = past_end
            if not valid:
                invalid.append(length)
    return case.deviation("length", float(len(invalid)), f"lengths {invalid}" if invalid else "no length")
