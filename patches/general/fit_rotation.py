"""Measure a model's rotation from vectors before and after it: the channel pairs and their frequencies.

The vectors have position 0 and the powers of two. Each angle determines the multiple of 2π in the next one, so the last
position gives the frequency with all digits of its angle.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from hf_posenc.core.geometry import Layout, Rotation

ROUNDING = 1e-4  # largest difference between a vector and its fit, relative to the longest vector, due to float32
TOLERANCE = 10 * ROUNDING  # largest relative difference of frequencies, and a thousandth of it as an absolute one


class NotRotation(Exception):
    """Vectors change with the position, but not by a rotation of channel pairs."""


def fit_rotation(before: Tensor, after: Tensor, positions: list[int]) -> tuple[Rotation | None, int]:
    """The rotation that maps ``before`` to ``after`` and its first channel; None and 0 if they are equal.

    Args:
        before: ``[heads, position, head_dim]``.
        after: the same vectors, rotated.
        positions: positions of the vectors: 0, 1, 2, 4, 8, …

    Raises:
        NotRotation: no pairing of channels explains the change.
    """
    changed = (after != before).any(0).any(0).nonzero().flatten().tolist()  # other channels keep their exact bits
    if not changed:
        return None, 0
    before, after = before.double(), after.double()
    size = float(after.norm(dim=-1).max())
    for first, dims, layout in candidates(changed, before.shape[-1]):
        block = slice(first, first + dims)
        turns, error = turns_of(before[..., block], after[..., block], layout)
        if error <= ROUNDING * size:
            amplitude = float(turns.abs().mean())
            exact = 1.0 if abs(amplitude - 1) < ROUNDING else amplitude
            frequencies = frequencies_of(turns.angle(), positions)
            return Rotation(frequencies, layout, amplitude=exact), first
    raise NotRotation(f"{len(changed)} of {before.shape[-1]} channels change with the position, and not in pairs")


def candidates(changed: list[int], head_dim: int) -> list[tuple[int, int, Layout]]:
    """Candidate blocks of rotated channels as (first channel, channels, layout), the likeliest first.

    Slow pairs may not move at the measured positions, so a block can be larger than the changed channels.
    """
    first, last = changed[0], changed[-1] + 1
    blocks = dict.fromkeys([(first, last - first), (0, head_dim), (first, head_dim - first)])
    return [(start, dims, layout) for start, dims in blocks if dims % 2 == 0 for layout in ("half", "interleaved")]


def turns_of(before: Tensor, after: Tensor, layout: Layout) -> tuple[Tensor, float]:
    """Least-squares complex factor of every pair, ``[position, pair]``, and its largest residual."""
    source, target = (as_pairs(x, layout) for x in (before, after))
    turns = (source.conj() * target).sum(0) / source.abs().square().sum(0).clamp(min=1e-12)
    return turns, float((target - turns * source).abs().max())


def as_pairs(x: Tensor, layout: Layout) -> Tensor:
    """Channel pairs as complex numbers, ``[heads, position, pair]``."""
    pairs = x.unflatten(-1, (2, -1)).transpose(-1, -2) if layout == "half" else x.unflatten(-1, (-1, 2))
    return torch.view_as_complex(pairs.contiguous())


def frequencies_of(angles: Tensor, positions: list[int]) -> tuple[float, ...]:
    """Radians per token of every pair, from ``angles [position, pair]`` that are known up to a multiple of 2π."""
    frequencies = torch.zeros_like(angles[0])
    for position, angle in zip(positions, angles, strict=True):
        if position == 0:
            continue
        remainder = torch.remainder(angle - frequencies * position + math.pi, 2 * math.pi) - math.pi
        if position > 1 and bool((remainder.abs() > math.pi / 4).any()):
            raise NotRotation(f"angles at position {position} are not {position} times those at position 1")
        frequencies = frequencies + remainder / position
    return tuple(frequencies.tolist())


def nearest_known(fit: Rotation, known: list[tuple[float, ...]]) -> Rotation:
    """The fit with the exact frequencies of the first known rotation within `TOLERANCE`; unchanged if none is.

    Args:
        fit: measured rotation.
        known: frequencies in the model's buffers and configuration.
    """
    measured = torch.tensor(fit.frequencies, dtype=torch.float64)
    for values in known:
        if len(values) != len(measured):
            continue
        stated = torch.tensor(values, dtype=torch.float64)
        if bool(((stated - measured).abs() <= TOLERANCE * stated.abs() + TOLERANCE * 1e-3).all()):
            return replace(fit, frequencies=values)
    return fit
