"""Counting, or sharing out the interval from 0 to 1: one has no end, the other no fixed step."""

from __future__ import annotations

from codes import coded, codes
from teaching import Result, Table, lesson

LENGTHS = (3, 4, 5, 100)


@lesson("Why not count 0, 1, 2 …, or from 0 to 1?", schemes=("integer", "norm01", "sinusoidal"))
def steps(schemes: tuple[str, ...]) -> Result:
    """The first step and the largest number of codes, in texts of several lengths."""
    rows = []
    for scheme in schemes:
        for length in LENGTHS:
            code = codes(coded(scheme), length)
            step = float((code[1] - code[0]).norm() / code.shape[1] ** 0.5)
            rows.append((scheme, length, step, float(code.abs().max())))
    shows = """Each code in texts of several lengths: how far the first two positions lie apart, a channel, and the
        largest number that is added to a word, whose own channels are about 1."""
    conclusions = []
    for scheme in schemes:
        mine = [row for row in rows if row[0] == scheme]
        sizes, largest = [row[2] for row in mine], mine[-1][3]
        uneven = max(sizes) - min(sizes) > 1e-4
        conclusions.append(
            f"{scheme}: "
            + (
                f"a step is {sizes[0]:.3f} in 3 words and {sizes[1]:.3f} in 4"
                if uneven
                else f"a step is always {sizes[0]:.3f}"
            )
            + (
                f", and codes grow to {largest:.0f}, far above the words."
                if largest > 10
                else f", and codes end at {largest:.2g}."
            )
        )
    return shows, [Table(("scheme", "words", "first step", "largest number"), tuple(rows))], " ".join(conclusions)


if __name__ == "__main__":
    steps.main()
