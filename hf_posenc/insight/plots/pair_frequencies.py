"""Rotations as numbers: the frequencies before and after a scheme, and R(p) as a matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.core.geometry import Rotation, geometric
from hf_posenc.insight.plots.target import Target, position_range

BASE = 10_000.0  # of models without RoPE of their own


def rotations(target: Target, length: int) -> dict[str, Rotation]:
    """The rotations in use in a text of some length, by what they are for; the one of the whole text is called ``""``.

    Args:
        target: the scheme.
        length: decides where the rotation of a row depends on its length; the row is then the last.
    """
    scheme = target.scheme
    by_row = scheme.row_rotation()
    if by_row is not None:
        longest = int(by_row.length_of(torch.tensor([[length - 1]])))
        return {f"at length {longest}": by_row.rotation_of(longest)}
    found: dict[str, Rotation] = {}
    for region in scheme.regions(target.context(position_range(1))):
        if region.rotation is not None and region.rotation not in found.values():
            start, end = region.band.rows_from, region.band.rows_until
            found[f"rows from {start}" if end is None else f"rows under {end}"] = region.rotation
    shared = scheme.rotation()
    return found or ({} if shared is None else {"": shared})


def frequencies(target: Target, length: int) -> dict[str, Tensor]:
    """Radians per token of every pair, ``[pairs]``, float64, of each of `rotations`."""
    return {
        name: torch.as_tensor(rotation.frequencies, dtype=torch.float64)
        for name, rotation in rotations(target, length).items()
    }


def unscaled(target: Target) -> Tensor:
    """Radians per token of every pair before any scaling: the model's own, or RoPE's, ``[pairs]``, float64."""
    rotary = target.geometry.rotary
    own = geometric(BASE, target.geometry.head_dim) if rotary is None else rotary.rotation.frequencies
    return torch.as_tensor(own, dtype=torch.float64)
