"""Sink logits: one trained logit per head takes part in the softmax, so that a head may attend to nothing.

    o_i = σ(lse_i − s_h) Σ_j softmax_j(z_ij) v_j          lse_i = log Σ_j e^(z_ij),   s_h = init + a_h
        = Σ_j softmax_j([z_i, s_h])_j v_j                  z: the whole logit, biases included

The weights of a softmax sum to one. A head that finds nothing to read puts them on the first tokens, and models break
when these leave a window. The sink takes that weight, and has no value. Both lines are equal; the first needs only the
log-sum-exp of attention, which kernels return.

Learned: a, zero at first. A sink of −∞ would have no effect and no gradient either. ``init`` is −16: if the log-sum-exp
of the keys is 0, the sink's weight is 10⁻⁷, which float32 rounds away, so a trained model starts unchanged. (A first
token whose only score is −5 loses 2 · 10⁻⁵.) The gradient is as small, and smaller with large scores. Adam's steps do
not depend on the size of gradients, but vanish below its ε of 10⁻⁸. Then begin higher, for example at −6. gpt-oss
trains from scratch, with sinks near zero: ``init=0``. The parameter is a, because bfloat16 would round −16 to steps of
a tenth; gpt-oss stores s.

OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", arXiv:2508.10925, section 2.2; Xiao, Tian, Chen, Han, Lewis 2023,
"Efficient Streaming Language Models with Attention Sinks", arXiv:2309.17453, section 3.3; Miller 2023, "Attention Is
Off By One", which has s = 0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_posenc.core.geometry import Geometry
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.registry import register_scheme

WITHOUT_EFFECT = -16.0


@register_scheme("sink_logits", aliases=("learned_sink", "softmax_one"), paper="2508.10925")
class SinkLogits(Scheme):
    """A trained logit per head and layer that takes weight from all keys. Works on top of any positions.

    ``init`` is the initial logit: −16 leaves a trained model as it is, 0 is for training from scratch.
    """

    formula = r"""
    o_i &= \sigma(\mathrm{lse}_i - s_h) \sum_j \mathrm{softmax}_j(z_{ij}) \, v_j \\
    \mathrm{lse}_i &= \log \sum_j e^{z_{ij}}, \quad s_h = \mathtt{init} + a_h, \quad a_h = 0 \text{ at first}
    """

    replaces_host = False
    shared = False

    def __init__(self, geometry: Geometry, *, init: float = WITHOUT_EFFECT) -> None:
        super().__init__(geometry)
        self.init = init
        self.silent_at_first = init <= WITHOUT_EFFECT
        self.a = nn.Parameter(torch.zeros(geometry.heads))

    def reset_parameters(self) -> None:
        """Reset a to 0."""
        nn.init.zeros_(self.a)

    def sink(self) -> Tensor:
        """s, ``[heads]``, float32."""
        return self.init + self.a.float()
