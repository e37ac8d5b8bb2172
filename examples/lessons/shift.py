"""The matrix of a step, recovered from codes alone."""

from __future__ import annotations

import math

import torch
from codes import coded, codes
from teaching import Result, Table, lesson
from torch import Tensor

from hf_posenc.insight.properties.target import FAR
from hf_posenc.insight.properties.translation import solve

SAMPLES, REACH = 512, 2**20
HOLDS = 1e-4


@lesson("Which matrix moves a code on by k?", schemes=("sinusoidal", "binary"))
def shift(schemes: tuple[str, ...]) -> Result:
    """Least squares on codes of random positions, for steps of one and two; and the angles of what is found."""
    rows, tables, conclusions = [], [], []
    for scheme in schemes:
        residual, one, two = steps(scheme)
        values = torch.linalg.eigvals(one)
        off_circle, squared = float((values.abs() - 1).abs().max()), float((one @ one - two).norm() / two.norm())
        rows.append((scheme, residual, off_circle, squared))
        conclusions.append(conclusion_of(scheme, residual, off_circle, squared))
        if residual < HOLDS and off_circle < HOLDS:
            tables.append(hands(scheme, values))
    shows = f"""Codes of {SAMPLES} random positions below {REACH} and of the positions after them: M₁ is fitted by least
        squares, then M₂ for a step of two. Were the step a rotation, its eigenvalues would lie on the unit circle, and
        two steps would be M₁ twice. The angles of the eigenvalues are then the frequencies, in radians per position."""
    columns = ("scheme", "residual on other positions, in steps", "eigenvalues off the unit circle", "M₁ M₁ against M₂")
    return shows, [Table(columns, tuple(rows)), *tables], " ".join(conclusions)


def steps(scheme: str) -> tuple[float, Tensor, Tensor]:
    """The residual of M₁ on positions it was not fitted to, and M₁ and M₂."""
    target = coded(scheme)
    end = (REACH if target.reach == FAR else target.reach) - 2
    positions = torch.randperm(end, generator=torch.Generator().manual_seed(0))[: 2 * SAMPLES]
    at = {by: codes(target, positions + by) for by in (0, 1, 2)}
    seen, other = slice(0, len(positions) // 2), slice(len(positions) // 2, None)
    one, two = (solve(at[0][seen], at[by][seen]) for by in (1, 2))
    step = (at[1][other] - at[0][other]).norm()
    return float((at[0][other] @ one - at[1][other]).norm() / step), one, two


def hands(scheme: str, values: Tensor) -> Table:
    """The frequencies read off the eigenvalues, fastest first, and the positions of a full turn."""
    angles = values.angle().abs().sort(descending=True).values[::2]
    chosen = [0, 1, 2, len(angles) // 2, len(angles) - 1]
    rows = tuple((n, float(angles[n]), 2 * math.pi / max(float(angles[n]), 1e-12)) for n in chosen)
    return Table(("hand", "radians per position", "positions per rotation"), rows, f"{scheme}: fitted rotation")


def conclusion_of(scheme: str, residual: float, off_circle: float, squared: float) -> str:
    """Sentence on the numbers of one scheme."""
    if residual >= HOLDS:
        return f"{scheme}: no matrix does; {100 * min(residual, 1):.0f} % of a step is left unexplained."
    turns = "a rotation" if off_circle < HOLDS else "a matrix, but no rotation"
    return f"{scheme}: one matrix for all positions, {turns}" + (
        ", and two steps are M₁ twice." if squared < 1e-3 else "."
    )


if __name__ == "__main__":
    shift.main()
