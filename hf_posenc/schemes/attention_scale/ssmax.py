"""Scalable softmax: logits times the logarithm of the number of keys, by as much as each head has learned.

    weights_i = softmax_j((s_h ln n_i + b_h) z_ij)        z: the whole logit, biases included; n_i: keys row i sees

The maximum of a softmax over n equal-looking logits falls with n; multiplied by ln n it does not. Multiplying it must
be: a number subtracted from all logits of a row changes nothing. A decoder's row i sees i + 1 keys; an encoder's rows
all see the real tokens of their text.

Nakanishi 2025, "Scalable-Softmax Is Superior for Attention", arXiv:2501.19399, sections 2 and 3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.schemes.attention_scale.logn import keys_seen
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import Positive
from hf_posenc.schemes.registry import register_scheme


@register_scheme("ssmax", aliases=("scalable_softmax",), paper="2501.19399")
class SSMax(Scheme):
    """Logits scaled by ln n, trained for each head and layer. Works on top of any positions; tune after patching.

    ``s_init`` is where s starts. With ``bias`` there is a b as well, which starts there: the paper finds that it helps
    training and hurts longer texts. ``learned=False`` keeps both as they start.
    """

    replaces_host = False

    def __init__(
        self, geometry: Geometry, *, s_init: Positive = 0.43, learned: bool = True, bias: float | None = None
    ) -> None:
        super().__init__(geometry)
        self.shared = not learned  # type: ignore[misc]
        self.s_init, self.bias_init = s_init, bias
        self.s = nn.Parameter(torch.empty(geometry.heads)) if learned else None
        self.b = nn.Parameter(torch.empty(geometry.heads)) if learned and bias is not None else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Put s and b back to where they start."""
        if self.s is not None:
            nn.init.constant_(self.s, self.s_init)
        if self.b is not None:
            nn.init.constant_(self.b, self.bias_init)  # type: ignore[arg-type]

    def row_scale(self, ctx: PositionContext) -> Tensor:
        """Factor of each row's logits, ``[batch or 1, heads or 1, query]``, float32."""
        logarithm = ctx.once(("ssmax",), lambda: _logarithm(ctx))
        s = self.s_init if self.s is None else self.s.float()[:, None]
        b = (self.bias_init or 0.0) if self.b is None else self.b.float()[:, None]
        return s * logarithm + b


def _logarithm(ctx: PositionContext) -> Tensor:
    """ln n of each row, ``[batch or 1, 1, query]``."""
    return keys_seen(ctx).float().log()[:, None].expand(-1, -1, ctx.query_positions.shape[1])
