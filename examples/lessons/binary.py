"""The digits of a position: unique and bounded, but neighbours may lie far apart."""

from __future__ import annotations

from codes import coded, codes
from teaching import Result, Table, lesson
from torch import Tensor

STEPS = ((6, 7), (7, 8), (8, 9), (127, 128))


@lesson("Why not the binary digits of the position?")
def binary() -> Result:
    """The code of 252, steps between neighbours, and after how many positions channels repeat."""
    digits, waves = codes(coded("binary"), 256), codes(coded("sinusoidal"), 256)
    written = "".join(str(int(bit)) for bit in digits[252, :8].flip(0))
    rows = tuple(
        (f"{a} → {b}", int((digits[b] - digits[a]).abs().sum()), float((waves[b] - waves[a]).norm())) for a, b in STEPS
    )
    periods = tuple((channel, period(digits[:, channel])) for channel in range(7))
    jumps, lengths = [row[1] for row in rows], [row[2] for row in rows]
    shows = f"""Position 252 in binary is {written}. The lowest digit changes at every position, the
        next at every second, and so on: hands of a clock that only know two places. Sine and cosine are the same clock
        with hands that move."""
    even = max(lengths) - min(lengths) < 1e-3 * max(lengths)
    conclusion = (
        f"One step changes between {min(jumps)} and {max(jumps)} digits, "
        + ("and always moves the sinusoidal code equally far" if even else "and the sinusoidal code unevenly too")
        + f" ({min(lengths):.3f} to {max(lengths):.3f}): "
        + ("neighbours in place are no neighbours in code." if max(jumps) > 2 * min(jumps) else "no jump is large.")
    )
    tables = [
        Table(("step", "digits that change", "move of the sinusoidal code"), rows),
        Table(("channel", "positions until its digit repeats"), periods),
    ]
    return shows, tables, conclusion


def period(column: Tensor) -> int:
    """After how many positions a column ``[n]`` first repeats itself."""
    return next(n for n in range(1, len(column)) if bool((column[n:] == column[:-n]).all()))


if __name__ == "__main__":
    binary.main()
