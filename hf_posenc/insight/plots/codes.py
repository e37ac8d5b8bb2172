"""The code of every position, as numbers: an added embedding, a table entry, or a rotation.

code(p) ∈ Rⁿ                    a vector per position; of a rotation, R(p) applied to the hand (1, 0) of every pair
hand m of code(p)               two channels whose length no position changes: one clock hand
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hf_posenc.core.geometry import Rotation, geometric
from hf_posenc.core.rotation import rotate, table
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.plots.registry import Target, position_range

BASE = 10_000.0  # of models without RoPE of their own
STEADY = 1e-4  # relative change of a hand's length that is rounding


def has_code(target: Target) -> bool:
    """Whether every position has a code of its own."""
    return target.has("rotation", "row_rotation") or target.added(position_range(1)) is not None


def codes(target: Target, length: int, start: int = 0) -> Tensor:
    """Codes of the positions from ``start`` on, ``[length, channels]``, float32.

    Raises:
        OptionOutOfRange: positions have no code: the scheme only acts on pairs of them.
        PositionOutOfTable: the scheme ends before.
    """
    positions = position_range(length, start)
    added = target.added(positions)
    if added is not None:
        return added.expand(1, -1, -1)[0].float()
    rotating = list(rotations(target, length).values())
    if not rotating:
        raise OptionOutOfRange(
            f"Scheme {target.label!r} encodes only pairs of positions, so there is nothing to plot for a single one. "
            'Choose another plot: "bias", "score" or "distance".'
        )
    rotation = rotating[0]
    coordinates = positions if rotation.axes is None else target.scheme.coordinates(positions, None)
    upright = torch.zeros(1, 1, length, rotation.dims)  # (1, 0) in every rotated pair of channels
    upright[..., slice(0, rotation.dims // 2) if rotation.layout == "half" else slice(0, None, 2)] = 1.0
    return rotate(upright, rotation, table(rotation, coordinates))[0, 0].float()


def hands(code: Tensor) -> Tensor | None:
    """Convert codes ``[position, channels]`` to clock hands ``[position, pairs]``, complex; None if impossible.

    A pair is two neighbouring channels, or one channel of each half: the pairing in which pairs keep their length.
    """
    pairs = code.shape[1] // 2
    wide = code[:, : 2 * pairs].double()
    neighbours, halves = wide.unflatten(1, (pairs, 2)).unbind(2), wide.unflatten(1, (2, pairs)).unbind(1)
    for one, other in (neighbours, halves) if pairs else ():
        size = torch.hypot(one, other)
        if bool((size > 0).all() and (size.amax(0) <= size.amin(0) * (1 + STEADY)).all()):
            return torch.complex(one, other) / size
    return None


def rotated(target: Target, length: int, start: int = 0) -> Tensor | None:
    """Return the angle of each hand relative to position 0, modulo 2π, ``[length, pairs]``; None without hands."""
    first, later = hands(codes(target, 2)), hands(codes(target, max(length, 2), start))
    if first is None or later is None:
        return None
    clockwise = (first[1] * first[0].conj()).angle().sign()  # (sin, cos) turns against (cos, sin)
    return ((later[:length] * first[0].conj()).angle() * clockwise).remainder(2 * math.pi)


def gram(target: Target, length: int) -> Tensor:
    """Return ⟨code(i), code(j)⟩ divided by the mean of ⟨code(i), code(i)⟩, ``[length, length]``."""
    code = codes(target, length).double()
    return code @ code.T / code.square().sum(1).mean().clamp(min=1e-12)


def rotations(target: Target, length: int) -> dict[str, Rotation]:
    """Return the rotations in use, by the texts they apply to; a rotation of all texts has the name ``""``.

    Args:
        target: the scheme.
        length: length of the text, if the rotation depends on it.
    """
    scheme = target.scheme
    by_row = scheme.row_rotation()
    if by_row is not None:
        longest = int(by_row.length_of(torch.tensor([[length - 1]])))
        return {f"at length {longest:,}": by_row.rotation_of(longest)}
    by_region: dict[str, Rotation] = {}
    for region in scheme.regions(target.context(position_range(1))):
        if region.rotation is not None and region.rotation not in by_region.values():
            start, end = region.band.rows_from, region.band.rows_until
            by_region[f"texts from {start:,} tokens" if end is None else f"texts under {end:,}"] = region.rotation
    shared = scheme.rotation()
    return by_region or ({} if shared is None else {"": shared})


def frequencies(target: Target, length: int) -> dict[str, Tensor]:
    """Return radians per token of every pair, ``[pairs]``, float64, for each of `rotations`."""
    return {
        name: torch.as_tensor(rotation.frequencies, dtype=torch.float64)
        for name, rotation in rotations(target, length).items()
    }


def unscaled(target: Target) -> Tensor:
    """Return radians per token of every pair before scaling: of the model, or of RoPE; ``[pairs]``, float64."""
    rotary = target.geometry.rotary
    own = geometric(BASE, target.geometry.head_dim) if rotary is None else rotary.rotation.frequencies
    return torch.as_tensor(own, dtype=torch.float64)
