"""xPos: RoPE whose pairs also fade with distance, the slow ones least.

    q_i' = R(i) q_i ζ_m^(i / B),  k_j' = R(j) k_j ζ_m^(−j / B)        ζ_m = (2m + γ d) / ((1 + γ) d), B = scale_base
    per pair m the score of RoPE times ζ_m^((i − j) / B)

Written as above the factors overflow (float32 at 65k tokens). Here keys are scaled from the start of their chunk, and
queries from the start of the chunk they read, once for every chunk back: all factors stay within e^±5, a key is cached
once and for good, and the result is exact at every length. Only the past fades, so there must be no future in sight.

Sun et al. 2022, "A Length-Extrapolatable Transformer", arXiv:2212.10554, section 2.2.
"""

from __future__ import annotations

import math
from functools import partial

from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry, Layout, Rotation
from hf_posenc.core.regions import EVERYTHING, Band, Region
from hf_posenc.core.tracing import is_traced
from hf_posenc.schemes.options import AtLeastOne, Base, Positive
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.rotary import Rotary

LARGEST = 5.0  # exponent: e^5 leaves float16 room for the keys themselves


@register_scheme("xpos", aliases=("lex",), paper="2212.10554")
class XPos(Rotary):
    """Rotation with exponential decay by pair. No parameters; trained from scratch.

    A graph for any length (`torch.export`, `torch.compile`) holds for the lengths with as many chunks as the one it was
    made at: a compiler makes another where a chunk begins, and an exported program ends there.

    ``gamma`` (0.4) says how unequal the pairs fade, ``scale_base`` (512), at least 1, how slowly all of
    them do.
    """

    needs_causal = True

    def __init__(
        self,
        geometry: Geometry,
        *,
        gamma: Positive = 0.4,
        scale_base: AtLeastOne = 512.0,
        base: Base | None = None,
        layout: Layout | None = None,
    ) -> None:
        super().__init__(geometry, base=base, layout=layout)
        d = self.dims
        self.decay = tuple(-math.log((2 * m + gamma * d) / ((1 + gamma) * d)) / scale_base for m in range(d // 2))
        self.chunk = max(1, int(LARGEST / self.decay[0]))

    def rotation(self) -> Rotation:
        return Rotation(self.frequencies(), self.layout, decay=self.decay)

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        """One region a chunk back; the keys of all are the same."""
        back = ctx.once((id(self.original), "chunks"), partial(self.chunks_back, ctx))
        if back == 0:
            return (Region(EVERYTHING, query_age=partial(self.query_age, 0), key_age=self.key_age),)
        return tuple(
            Region(Band(n, n + 1, chunk=self.chunk), query_age=partial(self.query_age, n), key_age=self.key_age)
            for n in range(back + 1)
        )

    def chunks_back(self, ctx: PositionContext) -> int:
        """How many chunks the farthest key in reach is back."""
        if is_traced():  # positions have no values yet; no text has more chunks than its keys fill
            return (ctx.key_positions.shape[1] + self.chunk - 2) // self.chunk
        newest, oldest = int(ctx.query_positions.max()), int(ctx.key_positions.min())
        return max(0, newest // self.chunk - oldest // self.chunk)

    def key_age(self, positions: Tensor) -> Tensor:
        """Tokens since the start of the key's chunk."""
        return positions % self.chunk

    def query_age(self, back: int, positions: Tensor) -> Tensor:
        """Minus the tokens since the start of the chunk that is ``back`` before the query's."""
        return -(positions % self.chunk + back * self.chunk)
