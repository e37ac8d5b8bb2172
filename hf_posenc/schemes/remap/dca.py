"""Dual chunk attention: distances are exact within a chunk and to its neighbour, and never exceed c.

    keys at j mod S          S = c − w, c = chunk, w = local
    queries at i mod S             for keys of their own chunk of S tokens
               min(i mod S + S, c) for keys of the chunk before
               min(2S − 1, c)      for older keys

All keys are rotated once. Distances stay exact up to w + 1 across a boundary; beyond, only the positions of keys inside
their chunks differ. The released code also increases a temperature with the sequence length, so cached keys keep an
older value. Here ``mscale`` uses the value of the target length for all.

An et al. 2024, "Training-Free Long-Context Scaling of Large Language Models", arXiv:2402.17463, section 3;
github.com/HKUNLP/ChunkLlama.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.regions import Band, Region
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import PositiveInt
from hf_posenc.schemes.registry import register_scheme


@register_scheme("dca", aliases=("chunkllama",), zero_shot=True, paper="2402.17463")
class DualChunkAttention(Scheme):
    """Positions start over in every chunk. Zero-shot on RoPE models; keys are cached rotated, once.

    ``chunk`` (default: ¾ of the trained length) bounds every distance. Up to ``local`` (default: an eighth), distances
    stay exact across a boundary. ``mscale`` adds the released code's temperature, (0.05 ln factor + 1)² on all logits.
    """

    formula = r"""
    \text{keys at } & j \bmod S \qquad S = c - w, \; c = \mathtt{chunk}, \; w = \mathtt{local} \\
    \text{queries at } & \begin{cases}
    i \bmod S & \text{for keys of their own chunk of $S$ tokens} \\
    \min(i \bmod S + S, \, c) & \text{for keys of the chunk before} \\
    \min(2S - 1, \, c) & \text{for older keys}
    \end{cases}
    """

    replaces_host = False
    needs_rotation = True
    needs_causal = True

    def __init__(
        self,
        geometry: Geometry,
        *,
        chunk: PositiveInt | None = None,
        local: PositiveInt | None = None,
        mscale: bool = False,
    ) -> None:
        super().__init__(geometry)
        trained = geometry.trained_length
        self.chunk = max(2, trained * 3 // 4) if chunk is None else chunk
        self.local = max(1, trained // 8) if local is None else local
        if not self.local < self.chunk <= trained:
            raise OptionOutOfRange(
                f"local < chunk ≤ trained length must hold, got {self.local}, {self.chunk} and {trained}. "
                "The defaults are an eighth and three quarters of the trained length."
            )
        self.stride = self.chunk - self.local
        self.mscale = mscale

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        """Regions for keys of the same, the previous and older chunks; keys have the same positions in all three."""
        return (
            Region(Band(None, 1, self.stride), self.in_chunk, self.in_chunk),
            Region(Band(1, 2, self.stride), self.after_chunk, self.in_chunk),
            Region(Band(2, None, self.stride), self.at_end, self.in_chunk),
        )

    def in_chunk(self, positions: Tensor) -> Tensor:
        """Positions counted from the start of the chunk."""
        return positions % self.stride

    def after_chunk(self, positions: Tensor) -> Tensor:
        """Positions counted from the start of the previous chunk."""
        return (positions % self.stride + self.stride).clamp(max=self.chunk)

    def at_end(self, positions: Tensor) -> Tensor:
        """One position for all queries, after every key of a chunk."""
        return torch.full_like(positions, min(2 * self.stride - 1, self.chunk))

    def logit_scale(self) -> float:
        return (0.05 * math.log(self.geometry.factor) + 1) ** 2 if self.mscale else 1.0

    @property
    def unchanged_below(self) -> int:
        """The length of the first chunk, in which positions are unchanged."""
        return 0 if self.mscale else self.stride
