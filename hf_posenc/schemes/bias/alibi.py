"""ALiBi: attention with linear biases.

    score[h, i, j] = q_i · k_j / √d − m_h |i − j|          m_h = 2^(−8 (h + 1) / H) for H a power of two

Causally j ≤ i, so −m_h (i − j) = m_h j − m_h i. The last term is the same for all keys of a query and cancels in the
softmax: what remains depends only on the key. An encoder attends in both directions, by the absolute distance. With
``bidirectional="asymmetric"`` half of the heads look back and the others ahead, each half with the slopes of half as
many heads. Other ways to distinguish left from right have no source and are not offered.

Press, Smith, Lewis 2021, "Train Short, Test Long", arXiv:2108.12409, section 3; encoders: the authors' note in issue 5
of ofirpress/attention_with_linear_biases.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Literal

import torch
from torch import Tensor, nn

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.terms import KeyBias, ToeplitzBias
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.distances import by_head
from hf_posenc.schemes.options import AtLeastOne, NotNegative, Positive
from hf_posenc.schemes.registry import register_scheme

SlopeRule = Literal["code", "geometric", "learned"]
Sides = Literal["symmetric", "asymmetric"]
UNSEEN = -1e30  # far below every score, and still finite when a temperature multiplies it


@register_scheme("alibi", aliases=("linear_bias",), paper="2108.12409")
class ALiBi(Scheme):
    """Linear penalty on distance with one slope per head. No parameters by default; defined at every length.

    ``slopes`` is the rule of the released code (default) or the plain geometric one; they differ if the number of heads
    is not a power of two. It can also be a list with one slope ≥ 0 per head (0: no position). ``"learned"`` trains
    their logarithms, starting from the released ones, shared by all layers. ``interpolate`` divides the slopes
    (arXiv:2310.13017).
    """

    formula = r"""
    \mathrm{score}_{hij} &= \frac{q_i \cdot k_j}{\sqrt d} - m_h \, |i - j| \\
    m_h &= 2^{-8 (h + 1) / H} \quad \text{for $H$ a power of two}
    """

    later_keys = False

    def __init__(
        self,
        geometry: Geometry,
        *,
        slopes: SlopeRule | list[NotNegative] = "code",
        bias_max: Positive = 8.0,
        bidirectional: Sides = "symmetric",
        interpolate: AtLeastOne = 1.0,
    ) -> None:
        super().__init__(geometry)
        self.halves = bidirectional == "asymmetric"
        if self.halves:
            _check_halves(geometry)
        sides = 2 if self.halves else 1
        chosen = slopes if isinstance(slopes, list) else SLOPE_RULES[slopes](geometry.heads // sides, bias_max) * sides
        if len(chosen) != geometry.heads:
            raise OptionOutOfRange(
                f"slopes must have one value for each of {geometry.heads} heads, got {len(chosen)}. Give one per head."
            )
        self.slopes, self.interpolate = tuple(chosen), interpolate
        self.log_slopes = nn.Parameter(torch.empty(geometry.heads)) if slopes == "learned" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset learned slopes to the values of the released rule."""
        if self.log_slopes is not None:
            with torch.no_grad():
                self.log_slopes.copy_(torch.tensor(self.slopes).log())

    def bias(self, ctx: PositionContext) -> KeyBias | ToeplitzBias:
        """Bias of every key, ``[batch or 1, heads, key]``, or of every distance; never of every pair."""
        slopes = ctx.constant(self.slopes) if self.log_slopes is None else self.log_slopes.float().exp()
        slopes = slopes / self.interpolate
        if not ctx.causal and self.halves:
            return ToeplitzBias(lambda distance: _one_sided(slopes, distance))
        return linear_bias(slopes, ctx, None if self.log_slopes is not None else (id(self.original), "bias of keys"))


def linear_bias(slopes: Tensor, ctx: PositionContext, once: Hashable | None = None) -> KeyBias | ToeplitzBias:
    """The bias −slope · distance, with ``slopes [heads]``; a bias of keys if a decoder's positions are not remapped.

    ``once`` identifies slopes that all layers share: the bias of keys is then computed once per forward pass.
    """
    if not ctx.causal or ctx.remapped:
        return ToeplitzBias(lambda distance: by_head(-slopes, distance.abs()), slopes)
    return _key_bias(slopes, ctx) if once is None else ctx.once(once, lambda: _key_bias(slopes, ctx))


def _key_bias(slopes: Tensor, ctx: PositionContext) -> KeyBias:
    # Relative to the last key: this cancels in the softmax, and keeps the terms of a slope's gradient small.
    offsets = ctx.exact(ctx.key_positions - ctx.key_positions[:, -1:])
    return KeyBias(slopes[:, None] * offsets[:, None, :], slopes)


def _check_halves(geometry: Geometry) -> None:
    if geometry.causal:
        raise OptionOutOfRange("bidirectional='asymmetric' is for encoders, and this model is a decoder. Leave it out.")
    if geometry.heads % 2:
        raise OptionOutOfRange(
            f"bidirectional='asymmetric' needs an even number of heads, and this model has {geometry.heads}. "
            "Use 'symmetric'."
        )


def _one_sided(slopes: Tensor, distance: Tensor) -> Tensor:
    """The penalty ``[heads, …]``; it hides later keys from the first half of the heads, earlier ones from the rest."""
    side = torch.ones_like(slopes, dtype=distance.dtype)
    side[len(slopes) // 2 :] = -1
    return by_head(-slopes, distance.abs()).masked_fill(by_head(side, distance) < 0, UNSEEN)


def code_slopes(heads: int, bias_max: float = 8.0) -> list[float]:
    """The released rule: geometric for a power of two; else those of the power below, and every second of the next."""
    below = 2 ** math.floor(math.log2(heads))
    return geometric_slopes(below, bias_max) + geometric_slopes(2 * below, bias_max)[0::2][: heads - below]


def geometric_slopes(heads: int, bias_max: float = 8.0) -> list[float]:
    """2^(−bias_max (h + 1) / heads)."""
    return [2 ** (-bias_max * (h + 1) / heads) for h in range(heads)]


SLOPE_RULES = {"code": code_slopes, "geometric": geometric_slopes, "learned": code_slopes}
