"""Check of length: a scheme runs as far as it says, and says clearly where it ends."""

from __future__ import annotations

from hf_posenc.checks.case import Case, position_limit
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.registry import register_check
from hf_posenc.errors import PositionOutOfTable


@register_check("length")
def runs_or_raises(pair: Case) -> Deviation:
    """Texts of the trained length, one more, and four times that are read; past its end a scheme raises.

    The value is the number of lengths at which neither happened, or the numbers were not finite.
    """
    with pair.patched() as model:
        end = position_limit(model)
        wanted = {pair.trained, pair.trained + 1, 4 * pair.trained, *(() if end is None else (end, end + 1))}
        wrong = []
        for length in sorted(wanted):
            beyond = end is not None and length > end
            try:
                fine = bool(forward(model, random_tokens(model, length)).isfinite().all()) and not beyond
            except PositionOutOfTable:
                fine = beyond
            if not fine:
                wrong.append(length)
    return pair.gap("length", float(len(wrong)), f"lengths {wrong}" if wrong else "no length")
