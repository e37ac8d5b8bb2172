"""Axial RoPE: separate channels of every head for each axis of an image, a video or any other grid.

    R(x, y, …) = diag(R_d1(x), R_d2(y), …)          ω_m = base^(−2m / d_a) within the d_a channels of axis a

Every axis rotates its own pairs, so the score depends on (Δx, Δy, …), each separately; two coordinates never share a
pair. Without coordinates from the caller, token n is in row n // W and column n mod W of a ``grid`` [H, W] (row-major,
any number of axes). Pairs are numbered axis by axis. In the ``interleaved`` layout the channels of an axis are
contiguous. In the ``half`` layout an axis has one range in each half of the head, as in Qwen2-VL's vision tower.

Su 2021, kexue.fm/archives/8397; Heo, Park, Han, Yun 2024, "Rotary Position Embedding for Vision Transformer",
arXiv:2403.13298, section 3 (where the base is 100).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt, Le
from torch import Tensor

from hf_posenc.core.geometry import Geometry, Layout, Rotation, geometric
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import Base, NotNegativeInt, PositiveInt
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.rotary import Rotary

Axes = Annotated[int, Gt(0), Le(16)]


@register_scheme("rope_nd", aliases=("axial", "rope2d"), paper="2403.13298")
class AxialRoPE(Scheme):
    """RoPE over two or more coordinates, each rotating its own channels. No parameters; for training from scratch.

    Coordinates come as ``position_ids [axes, batch, token]``, or from ``grid`` (default: the smallest square or cube
    that holds the trained length). A sequence longer than the grid continues along its first axis. ``dims`` has the
    number of channels of each axis, by default equal; other channels are not rotated. ``base`` is one number, or one
    per axis.
    """

    formula = r"""
    R(x, y, \dots) &= \mathrm{diag}(R_{d_1}(x), R_{d_2}(y), \dots) \\
    \omega_m &= \mathrm{base}^{-2m/d_a} \quad \text{within the $d_a$ channels of axis $a$}
    """

    option_aliases: ClassVar[dict[str, str]] = {"coords": "grid"}

    def __init__(
        self,
        geometry: Geometry,
        *,
        axes: Axes = 2,
        dims: Sequence[NotNegativeInt] | None = None,
        base: Base | Sequence[Base] = 100.0,
        grid: Sequence[PositiveInt] | None = None,
        layout: Layout | None = None,
    ) -> None:
        super().__init__(geometry)
        equal_share = geometry.rotary_dim // axes // 2 * 2
        self.dims = (equal_share,) * axes if dims is None else tuple(dims)
        self.bases = tuple(base) if isinstance(base, Sequence) else (base,) * axes
        side = math.ceil(geometry.trained_length ** (1 / axes) - 1e-9)  # 8 is not 2.0000000000000004 cubed
        self.grid = (side,) * axes if grid is None else tuple(grid)
        for name, values in (("dims", self.dims), ("base", self.bases), ("grid", self.grid)):
            if len(values) != axes:
                raise OptionOutOfRange(
                    f"{name} must have one number for each of {axes} axes, got {len(values)}. Give one per axis."
                )
        if any(d % 2 for d in self.dims) or not 0 < sum(self.dims) <= geometry.head_dim:
            raise OptionOutOfRange(
                f"dims must be even numbers with a sum of at most {geometry.head_dim}, the channels of a head, and not "
                f"all 0, got {list(self.dims)}. Name fewer axes or other dims."
            )
        self.layout: Layout = layout or Rotary(geometry).layout

    def rotation(self) -> Rotation:
        by_axis = [geometric(base, d) for base, d in zip(self.bases, self.dims, strict=True)]
        axes = tuple(axis for axis, frequencies in enumerate(by_axis) for _ in frequencies)
        return Rotation(tuple(w for frequencies in by_axis for w in frequencies), self.layout, axes=axes)

    def coordinates(self, positions: Tensor, given: Tensor | None) -> Tensor:
        """The caller's coordinates, or the grid's: row-major, with an unbounded first axis."""
        if given is not None:
            return checked_coordinates(given, len(self.grid), "rope_nd")
        columns = []
        for side in reversed(self.grid[1:]):
            columns.append(positions % side)
            positions = positions.div(side, rounding_mode="floor")
        return torch.stack([positions, *reversed(columns)], dim=-1)


def checked_coordinates(given: Tensor, axes: int, name: str) -> Tensor:
    """The caller's coordinates ``[…, axes]``.

    Raises:
        OptionOutOfRange: their number differs from the scheme's number of axes.
    """
    if given.shape[-1] != axes:
        raise OptionOutOfRange(
            f"Scheme {name!r} has {axes} axes, but position_ids give {given.shape[-1]} coordinates per token. "
            f"Pass position_ids of shape [{axes}, batch, token]."
        )
    return given
