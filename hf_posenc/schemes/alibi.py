"""ALiBi: attention with linear biases.

    score[h, i, j] = q_i · k_j / √d − m_h |i − j|          m_h = 2^(−8 (h + 1) / H) for H a power of two

Causally j ≤ i, so −m_h (i − j) = m_h j − m_h i. The last term is one number for a whole row and softmax is blind to it:
what remains depends on the key alone. An encoder sees both sides; there only the distance counts.

Press, Smith, Lewis 2021, "Train Short, Test Long", arXiv:2108.12409, section 3.
"""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from hf_posenc.errors import OptionOutOfRange
from hf_posenc.geometry import Geometry
from hf_posenc.options import AtLeastOne, Positive
from hf_posenc.positions import PositionContext
from hf_posenc.registry import register_scheme
from hf_posenc.schemes.base import Scheme
from hf_posenc.terms import KeyBias, ToeplitzBias

SlopeRule = Literal["code", "geometric"]


@register_scheme("alibi", aliases=("linear_bias",), paper="2108.12409")
class ALiBi(Scheme):
    """Linear penalty on distance with one slope per head. No parameters; defined at every length.

    ``slopes`` is the rule of the released code (default), the plain geometric one, which differs where the number of
    heads is no power of two, or a list of one slope a head. ``interpolate`` divides them (arXiv:2310.13017).
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        slopes: SlopeRule | list[float] = "code",
        bias_max: Positive = 8.0,
        interpolate: AtLeastOne = 1.0,
    ) -> None:
        super().__init__(geometry)
        chosen = slopes if isinstance(slopes, list) else SLOPE_RULES[slopes](geometry.heads, bias_max)
        if len(chosen) != geometry.heads:
            raise OptionOutOfRange(f"slopes must have one value for each of {geometry.heads} heads, got {len(chosen)}.")
        self.slopes = tuple(slope / interpolate for slope in chosen)

    def bias(self, ctx: PositionContext) -> KeyBias | ToeplitzBias:
        """Bias of every key, ``[batch or 1, heads, key]``, or of every distance; never one for every pair."""
        slopes = ctx.constant(self.slopes)
        if not ctx.causal:
            return ToeplitzBias(lambda distance: _by_head(-slopes, distance.abs()))
        # Counted back from the newest query: rounding then falls on keys the slope has already silenced.
        age = ctx.key_positions - ctx.query_positions[:, -1:]
        return KeyBias(slopes[:, None] * age[:, None, :])


def _by_head(slopes: Tensor, distance: Tensor) -> Tensor:
    return slopes.view(-1, *(1,) * distance.ndim) * distance


def code_slopes(heads: int, bias_max: float = 8.0) -> list[float]:
    """The released rule: geometric for a power of two; else those of the power below, and every second above it."""
    below = 2 ** math.floor(math.log2(heads))
    return geometric_slopes(below, bias_max) + geometric_slopes(2 * below, bias_max)[0::2][: heads - below]


def geometric_slopes(heads: int, bias_max: float = 8.0) -> list[float]:
    """2^(−bias_max (h + 1) / heads)."""
    return [2 ** (-bias_max * (h + 1) / heads) for h in range(heads)]


SLOPE_RULES = {"code": code_slopes, "geometric": geometric_slopes}
