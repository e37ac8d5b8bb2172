"""RoPE written three ways: a matrix, pairs of channels, complex numbers."""

from __future__ import annotations

import torch
from teaching import Result, Table, lesson
from tiny_models import apart
from torch import Tensor

from hf_posenc.core.geometry import Rotation, geometric
from hf_posenc.core.rotation.apply import rotate, table
from hf_posenc.insight.properties.layer import gaussian

DIMS, COUNT = 32, 48
CLOSE = 1e-5


@lesson("How does a rotation make scores depend on distance?")
def rope() -> Result:
    """The package's rotation against a matrix and against complex numbers; lengths and scores along diagonals."""
    frequencies, positions = geometric(10_000.0, DIMS), torch.arange(COUNT)
    query, key = gaussian(1, 1, 1, DIMS, seed=1), gaussian(1, 1, 1, DIMS, seed=2)
    here = rotation_of(query, frequencies, positions)
    there = rotation_of(key, frequencies, positions)
    scores = here @ there.T
    forms = (
        ("pairs of channels (as models run it)", here),
        ("block-diagonal matrix", torch.stack([matrix(frequencies, int(p)) @ query.flatten() for p in positions])),
        ("complex numbers", complex_rotation(query.flatten(), frequencies, positions)),
    )
    moved = torch.cat([scores.diagonal(n) - scores.diagonal(n)[0] for n in range(-COUNT + 1, COUNT)]).abs().max()
    rows = tuple(
        (name, apart(form, here), float((form.norm(dim=-1) - query.norm()).abs().max())) for name, form in forms
    )
    agree, kept = max(row[1] for row in rows) < CLOSE, max(row[2] for row in rows) < CLOSE
    shows = f"""One query and one key of {DIMS} channels, placed at {COUNT} positions. Each pair of channels turns by
        its own angle per position. As R(i)ᵀ R(j) = R(j − i), the product of both depends on the distance alone."""
    conclusion = (
        f"The three forms {'are one' if agree else 'differ'}, lengths {'stay' if kept else 'change'}, and scores at "
        f"one distance differ by {float(moved):.0e}: "
        f"{'only distance counts' if float(moved) < CLOSE else 'position counts too'}. They range over "
        f"{float(scores.max() - scores.min()):.1f}."
    )
    return shows, [Table(("form", "difference to the first", "change of length"), rows)], conclusion


def rotation_of(x: Tensor, frequencies: tuple[float, ...], positions: Tensor) -> Tensor:
    """``x [1, 1, 1, dims]`` at each of ``positions [n]``, ``[n, dims]``, as patched models rotate it."""
    rotation = Rotation(frequencies, "interleaved")
    return rotate(x.expand(1, 1, len(positions), -1), rotation, table(rotation, positions[None]))[0, 0]


def matrix(frequencies: tuple[float, ...], position: int) -> Tensor:
    """R(p): a 2 × 2 rotation for each pair along the diagonal."""
    angles = torch.tensor(frequencies, dtype=torch.float64) * position
    return torch.block_diag(*(torch.tensor([[a.cos(), -a.sin()], [a.sin(), a.cos()]]) for a in angles)).double()


def complex_rotation(x: Tensor, frequencies: tuple[float, ...], positions: Tensor) -> Tensor:
    """Pairs as complex numbers, times e^(i p ω)."""
    angles = positions[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    rotated = torch.view_as_complex(x.unflatten(0, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(rotated).flatten(1)


if __name__ == "__main__":
    rope.main()
