"""xPos: RoPE whose pairs also decay with distance, the slow ones least.

    q_i' = R(i) q_i ζ_m^(i / B),  k_j' = R(j) k_j ζ_m^(−j / B)        ζ_m = (2m + γ d) / ((1 + γ) d), B = scale_base
    per pair m the score of RoPE times ζ_m^((i − j) / B)

The factors of this formula overflow (float32 at 65k tokens). Here keys are scaled relative to the start of their chunk,
and queries relative to the start of the keys' chunk, once for each chunk distance. All factors stay within e^±5, a key
is cached once, and the result is exact at every length. The decay is defined for earlier keys only, so the scheme needs
a decoder.

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

LARGEST = 5.0  # exponent of a factor; e^5 leaves enough of float16's range for the keys themselves


@register_scheme("xpos", aliases=("lex",), paper="2212.10554")
class XPos(Rotary):
    """Rotation with exponential decay by pair. No parameters; trained from scratch.

    A graph for any length (`torch.export`, `torch.compile`) is valid for lengths with the number of chunks it was
    traced with. `torch.compile` recompiles for another number; an exported program is limited to it.

    ``gamma`` (0.4) sets how much the decay differs between pairs; ``scale_base`` (512, at least 1) sets how slow it is.
    """

    formula = r"""
    q'_i &= R(i) \, q_i \, \zeta_m^{i / B}, \quad k'_j = R(j) \, k_j \, \zeta_m^{-j / B} \\
    \zeta_m &= \frac{2m + \gamma d}{(1 + \gamma) \, d}, \quad B = \mathtt{scale\_base} \\
    & \text{per pair $m$ the score of RoPE times } \zeta_m^{(i - j) / B}
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
        """One region per chunk distance; all regions read the same keys."""
        back = ctx.once((id(self.original), "chunks"), partial(self.chunks_back, ctx))
        bands = [Band(n, n + 1, chunk=self.chunk) for n in range(back + 1)] if back > 0 else [EVERYTHING]
        return tuple(
            Region(band, query_decay_steps=partial(self.query_decay_steps, n), key_decay_steps=self.key_decay_steps)
            for n, band in enumerate(bands)
        )

    def chunks_back(self, ctx: PositionContext) -> int:
        """Distance of the farthest key, in chunks."""
        if is_traced():  # positions are unknown, but this is the most that so many keys can span
            return (ctx.key_positions.shape[1] + self.chunk - 2) // self.chunk
        oldest = ctx.first_key
        if oldest is None:
            newest, oldest = int(ctx.query_positions.max()), int(ctx.key_positions.min())
        else:
            newest = oldest + ctx.key_positions.shape[1] - 1
        return max(0, newest // self.chunk - oldest // self.chunk)

    def key_decay_steps(self, positions: Tensor) -> Tensor:
        """Tokens since the start of the key's chunk."""
        return positions % self.chunk

    def query_decay_steps(self, back: int, positions: Tensor) -> Tensor:
        """Minus the tokens since the start of the chunk that is ``back`` before the query's."""
        return -(positions % self.chunk + back * self.chunk)
