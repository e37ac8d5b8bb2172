"""Measure a model's rotation from vectors before and after it: which channels are a pair, and by which angle.

Nothing is read from code. Vectors stand at position 0 and at the powers of two: each angle tells which multiple of 2π
the next one contains, so that the last gives the frequency with as many digits as the angles have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_posenc.core.geometry import Layout, Rotation

ROUNDING = 1e-4  # largest difference of a rotated vector from its fit, relative to the longest, that float32 explains


@dataclass(frozen=True)
class RotationFit:
    """A rotation as it was measured.

    Attributes:
        rotation: frequencies, layout and amplitude; of the channels ``first`` to ``first + rotation.dims``.
        first: the first rotated channel of a head.
    """

    rotation: Rotation
    first: int


class NotRotation(Exception):
    """Vectors change with the position, but not as a rotation of pairs of channels changes them."""


def fit_rotation(before: Tensor, after: Tensor, positions: list[int]) -> RotationFit | None:
    """The rotation that takes ``before`` to ``after``; None where they are equal.

    Args:
        before: ``[heads, position, head_dim]``.
        after: the same vectors, rotated.
        positions: of the vectors: 0, 1, 2, 4, 8, …
    """
    changed = (after != before).any(0).any(0).nonzero().flatten().tolist()  # what is not rotated is not computed with
    if not changed:
        return None
    before, after = before.double(), after.double()
    size = float(after.norm(dim=-1).max())
    for first, dims, layout in candidates(changed, before.shape[-1]):
        block = slice(first, first + dims)
        turns, error = turns_of(before[..., block], after[..., block], layout)
        if error <= ROUNDING * size:
            amplitude = float(turns.abs().mean())
            exact = 1.0 if abs(amplitude - 1) < ROUNDING else amplitude
            frequencies = frequencies_of(turns.angle(), positions)
            return RotationFit(Rotation(frequencies, layout, amplitude=exact), first)
    raise NotRotation(f"{len(changed)} of {before.shape[-1]} channels change with the position, and not in pairs")


def candidates(changed: list[int], head_dim: int) -> list[tuple[int, int, Layout]]:
    """Blocks of channels and layouts that could be what rotates, the likeliest first.

    Slow pairs may not have moved at the positions that were measured, so that the block is at least what changed.
    """
    first, last = changed[0], changed[-1] + 1
    blocks = dict.fromkeys([(first, last - first), (0, head_dim), (first, head_dim - first)])
    return [(start, dims, layout) for start, dims in blocks if dims % 2 == 0 for layout in ("half", "interleaved")]


def turns_of(before: Tensor, after: Tensor, layout: Layout) -> tuple[Tensor, float]:
    """The complex factor of every pair at every position, ``[position, pair]``, and the largest error it leaves."""
    one, two = (as_pairs(x, layout) for x in (before, after))
    turns = (one.conj() * two).sum(0) / one.abs().square().sum(0).clamp(min=1e-12)
    return turns, float((two - turns * one).abs().max())


def as_pairs(x: Tensor, layout: Layout) -> Tensor:
    """Channels as complex numbers, ``[heads, position, pair]``."""
    pairs = x.unflatten(-1, (2, -1)).transpose(-1, -2) if layout == "half" else x.unflatten(-1, (-1, 2))
    return torch.view_as_complex(pairs.contiguous())


def frequencies_of(angles: Tensor, positions: list[int]) -> tuple[float, ...]:
    """Radians per token of every pair from ``angles [position, pair]``, each known up to a multiple of 2π."""
    found = torch.zeros_like(angles[0])
    for position, angle in zip(positions, angles, strict=True):
        if position == 0:
            continue
        left = torch.remainder(angle - found * position + math.pi, 2 * math.pi) - math.pi
        if position > 1 and bool((left.abs() > math.pi / 4).any()):
            raise NotRotation(f"angles at position {position} are not {position} times those at position 1")
        found = found + left / position
    return tuple(found.tolist())


def nearest_known(fit: RotationFit, known: list[tuple[float, ...]], tolerance: float) -> RotationFit:
    """The fit with exact frequencies: those of the first known rotation that it equals within ``tolerance``.

    Args:
        fit: as measured.
        known: frequencies that the model's own buffers and configuration state.
        tolerance: relative to each frequency, beside what the last position leaves undecided.
    """
    measured = torch.tensor(fit.rotation.frequencies, dtype=torch.float64)
    for values in known:
        if len(values) != len(measured):
            continue
        stated = torch.tensor(values, dtype=torch.float64)
        if bool(((stated - measured).abs() <= tolerance * stated.abs() + tolerance * 1e-3).all()):
            return RotationFit(Rotation(values, fit.rotation.layout, amplitude=fit.rotation.amplitude), fit.first)
    return fit
