"""Law of length: a scheme runs as far as it says, and says clearly where it ends."""

from __future__ import annotations

from hf_posenc.checks.case import Pair, reach
from hf_posenc.checks.deviation import Gap
from hf_posenc.checks.forward import read, text
from hf_posenc.checks.registry import law
from hf_posenc.errors import PositionOutOfTable


@law("length")
def runs_or_says_why(pair: Pair) -> Gap:
    """Texts of the trained length, one more, and four times that are read; past its end a scheme raises.

    The value is the number of lengths at which neither happened, or the numbers were not finite.
    """
    with pair.patched() as model:
        end = reach(model)
        wanted = {pair.trained, pair.trained + 1, 4 * pair.trained, *(() if end is None else (end, end + 1))}
        wrong = []
        for length in sorted(wanted):
            beyond = end is not None and length > end
            try:
                fine = bool(read(model, text(model, length)).isfinite().all()) and not beyond
            except PositionOutOfTable:
                fine = beyond
            if not fine:
                wrong.append(length)
    return pair.gap("length", float(len(wrong)), f"lengths {wrong}" if wrong else "no length")
