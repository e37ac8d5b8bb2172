"""Wavelet positions: the product of each query channel with a wavelet of the distance, of its own scale and shift.

    score[i, j] = q_i · (k_j + p_{i−j}) / √d          p_Δ[c] = ψ((Δ − b_c) / a_c),  ψ(t) = (1 − t²) e^(−t²/2)  (Ricker)

These are Shaw's relative vectors with fixed values: narrow and wide windows, near and far, without clipping. The paper
has dyadic scales and a grid of shifts. Here each scale is combined with each shift: a ∈ {1, 2, 4, …, 128},
b ∈ {0, 1, …}, one pair for each channel of a head.

Oka, Hasegawa, Nishida, Saito 2025, "Wavelet-based Positional Representation for Long Context", arXiv:2502.02004.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from hf_posenc.core.constants import constant
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.terms import Block, BlockBias
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.distances import clipped, query_scores, skewed
from hf_posenc.schemes.registry import register_scheme

DYADIC = 8  # scales 2⁰ … 2⁷
SUPPORT = 15.0  # in scales: farther from its shift a wavelet is 0 in float32, where e^(−t²/2) underflows at 14.4


@register_scheme("wavelet", aliases=("ricker",), paper="2502.02004")
class Wavelet(Scheme):
    """Fixed Ricker wavelets of the distance added to the keys. No parameters; defined at every length; for training.

    ``scales`` and ``shifts`` are the paper's, or lists whose product has a pair for each channel of a head.
    """

    formula = r"""
    \mathrm{score}_{ij} &= q_i \cdot (k_j + p_{i - j}) / \sqrt d \\
    p_\Delta[c] &= \psi((\Delta - b_c) / a_c), \quad \psi(t) = (1 - t^2) \, e^{-t^2/2} \text{ (Ricker)}
    """

    whole_positions = True

    def __init__(
        self,
        geometry: Geometry,
        *,
        scales: Literal["dyadic"] | list[float] = "dyadic",
        shifts: Literal["grid"] | list[float] = "grid",
    ) -> None:
        super().__init__(geometry)
        channels = geometry.head_dim
        widths = scales if isinstance(scales, list) else [2.0**n for n in range(min(DYADIC, channels))]
        if not widths or min(widths) <= 0:
            raise OptionOutOfRange(f"scales must be numbers greater than 0, got {widths}.")
        offsets = shifts if isinstance(shifts, list) else [float(b) for b in range(math.ceil(channels / len(widths)))]
        if len(widths) * len(offsets) < channels:
            raise OptionOutOfRange(
                f"{len(widths)} scales and {len(offsets)} shifts make {len(widths) * len(offsets)} wavelets, but a "
                f"head of this model has {channels} channels. Give more of them."
            )
        self.wavelets = tuple((a, b) for b in offsets for a in widths)[:channels]
        self.reach = math.ceil(max(abs(b) + SUPPORT * a for a, b in self.wavelets))

    def bias(self, ctx: PositionContext) -> BlockBias:
        """q_i · p_{i−j} for a block of queries."""
        reach = min(self.reach, ctx.key_positions.shape[1]) if ctx.steady else self.reach
        later = 0 if ctx.causal else reach  # a decoder has no negative distances
        key = ("wavelet", self.wavelets, reach, later)
        table = ctx.once(key, lambda: self.table(reach, later, ctx.device))

        steady = ctx.steady and not torch.is_grad_enabled()

        def row_of(distance: Tensor) -> Tensor:
            return clipped(distance, reach).clamp(max=reach + later)

        def of_block(block: Block) -> Tensor:
            if steady:
                return skewed(block.query * block.scaling, table, row_of, block)
            row = row_of(block.distance)
            return query_scores(block.query, table, row) * block.scaling

        return BlockBias(of_block, reads_scores=False)

    def table(self, reach: int, later: int, device: torch.device) -> Tensor:
        """p at the distances ``reach … −later``, ``[reach + later + 1, head_dim]``, float32."""
        a, b = (constant(values, torch.float32, device)[None] for values in zip(*self.wavelets, strict=True))
        distance = torch.arange(reach, -later - 1, -1, device=device)[:, None]
        squared = ((distance - b) / a) ** 2
        return (1 - squared) * torch.exp(-squared / 2)
