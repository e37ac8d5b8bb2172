"""Scalable softmax: multiply logits by the logarithm of the number of keys, with a learned factor per head.

    weights_i = softmax_j((s_h ln n_i + b_h) z_ij)        z: the whole logit, biases included; n_i: tokens up to i

The maximum of a softmax over n similar logits falls with n; multiplied by ln n it does not. It must be a factor: a
constant added to all logits of a query has no effect. n_i is i + 1 in a decoder; in an encoder it is the number of
unpadded tokens. Those that a window hides count, too.

Nakanishi 2025, "Scalable-Softmax Is Superior for Attention", arXiv:2501.19399, sections 2 and 3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.schemes.attention_scale.logn import keys_seen
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import NotNegative
from hf_posenc.schemes.registry import register_scheme


@register_scheme("ssmax", aliases=("scalable_softmax",), paper="2501.19399")
class SSMax(Scheme):
    """Logits scaled by ln n, trained for each head and layer. Works on top of any positions; tune after patching.

    ``s_init`` is the initial value of s. ``bias``, if given, is the initial value of b: the paper finds that b helps
    training and hurts longer sequences. ``learned=False`` keeps both fixed. With ``s_init=0, bias=1`` training starts
    at the unscaled model, as that of Mistral Large 4 does.
    """

    formula = r"""
    \mathrm{weights}_i &= \mathrm{softmax}_j \left( (s_h \ln n_i + b_h) \, z_{ij} \right) \\
    z &: \text{the whole logit, biases included}, \quad n_i: \text{tokens up to $i$}
    """

    replaces_host = False

    def __init__(
        self, geometry: Geometry, *, s_init: NotNegative = 0.43, learned: bool = True, bias: float | None = None
    ) -> None:
        super().__init__(geometry)
        self.shared = not learned
        self.s_init, self.bias_init = s_init, bias
        self.s = nn.Parameter(torch.empty(geometry.heads)) if learned else None
        self.b = nn.Parameter(torch.empty(geometry.heads)) if learned and bias is not None else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset s and b to their initial values."""
        if self.s is not None:
            nn.init.constant_(self.s, self.s_init)
        if self.b is not None:
            nn.init.constant_(self.b, self.bias_init)  # type: ignore[arg-type]

    def row_scale(self, ctx: PositionContext) -> Tensor:
        """Factor of each query's logits, ``[batch or 1, heads or 1, query]``, float32."""
        logarithm = ctx.once(("ssmax",), lambda: _logarithm(ctx))
        s = self.s_init if self.s is None else self.s.float()[:, None]
        b = (self.bias_init or 0.0) if self.b is None else self.b.float()[:, None]
        return s * logarithm + b


def _logarithm(ctx: PositionContext) -> Tensor:
    """ln n of each query, ``[batch or 1, 1, query]``."""
    return keys_seen(ctx).float().log()[:, None].expand(-1, -1, ctx.query_positions.shape[1])
