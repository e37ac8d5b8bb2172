"""Interpolated learned positions: read a table of n rows at fractional positions (position interpolation for tables).

    q_p = (1 − t) E_⌊r⌋ + t E_⌊r⌋₊₁          r = p (n − 1) / (L − 1),  t = r − ⌊r⌋,  L = target length

The first and the last row keep the first and the last position. ``mode="tile"`` repeats the table instead
(q_p = E_{p mod n}), as Longformer was initialised; ``"nearest"`` takes the nearest row. Fine-tuning trains the model's
own table.

Chen et al. 2023, arXiv:2306.15595, section 3.2, for rotations; of tables: Dosovitskiy et al. 2020, "ViT",
arXiv:2010.11929, section 3.2; tiles: Beltagy, Peters, Cohan 2020, "Longformer", arXiv:2004.05150, section 5.
"""

from __future__ import annotations

from math import gcd
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import embedding

from hf_posenc.core.context import check_table_rows
from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.absolute.learned_hier import trained_rows
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.registry import register_scheme

Mode = Literal["linear", "tile", "nearest"]


@register_scheme("learned_interp", aliases=("table_pi",), paper="2306.15595")
class LearnedInterp(Scheme):
    """The model's own table, interpolated between its rows up to the target length, or repeated."""

    formula = r"""
    q_p &= (1 - t) \, E_{\lfloor r \rfloor} + t \, E_{\lfloor r \rfloor + 1} \\
    r &= p \, \frac{n - 1}{L - 1}, \quad t = r - \lfloor r \rfloor, \quad L = \text{target length}
    """

    needs_table = True

    def __init__(self, geometry: Geometry, *, mode: Mode = "linear") -> None:
        super().__init__(geometry)
        self.rows, self.mode = trained_rows(geometry), mode
        self.steps, self.last = max(geometry.target_length - 1, 1), self.rows - 1
        if mode == "nearest" and self.steps % (2 * gcd(self.last, self.steps)) == 0:
            raise OptionOutOfRange(
                f"mode 'nearest' has ties: at length {geometry.target_length} a position lies halfway between two of "
                f'{self.rows} rows, and no source defines which to take. Use mode="linear", or another target length.'
            )

    def read_table(self, table: Tensor, positions: Tensor) -> Tensor:
        """Codes of ``positions […]`` from ``table [rows, width]``, with a gradient to it, ``[…, width]``.

        Raises:
            PositionOutOfTable: a position is past the target length.
        """
        check_table_rows(positions, self.longest, self.record.name)
        if self.mode == "tile":
            return embedding(positions % self.rows, table)
        # Integer arithmetic: if r is an integer, its row is returned unchanged, at any length.
        row = positions * self.last // self.steps
        fraction = (positions * self.last - row * self.steps) / self.steps
        if self.mode == "nearest":
            fraction = fraction.round()
        next_row = (row + 1).clamp(max=self.last)
        return torch.lerp(embedding(row, table), embedding(next_row, table), fraction[..., None].to(table.dtype))

    @property
    def keeps_table(self) -> bool:
        """Always: the codes are computed from the model's table."""
        return True

    @property
    def unchanged_below(self) -> int:
        """Number of rows of the table if they are repeated, or not interpolated.

        0 if the model also has a learned bias, which a scheme replaces.
        """
        interpolated = self.mode != "tile" and self.steps > self.last
        return 0 if interpolated or self.geometry.biased else self.rows

    @property
    def longest(self) -> int | None:
        """The target length; None if the table is repeated."""
        return None if self.mode == "tile" else self.geometry.target_length
