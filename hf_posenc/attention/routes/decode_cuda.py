"""Route of a decode query on CUDA: two products with keys and values in the cache's dtype, all else in float32.

    o = Σ_j softmax_j(q_r(j) · k_j · scaling + bias_j) v_j        r(j) = the region of key j

One query has few scores, so a dozen small kernels take less time than the call of a compiled one. No kernel has to be
compiled for another number of keys. In a compiled model, torch 2.11 crashes if a decode query goes to flex attention
under a mask.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import by_device
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes.dense_blocks import weigh_and_mix
from hf_posenc.core.terms import BlockBias


def accepts(call: AttentionCall) -> bool:
    """Whether the call is one new token on CUDA without gradients; its biases are of keys and distances."""
    terms = call.terms
    return (
        call.query_length == 1
        and by_device.on_cuda(call.values.device)
        and call.dropout == 0.0
        and not any(isinstance(bias, BlockBias) for bias in terms.bias)
        and terms.only("bias", "visible", "regions", "row_scale", "sink")
        and not torch.is_grad_enabled()
    )


def attend(call: AttentionCall) -> Tensor:
    """Attention output ``[batch, heads, 1, value_dim]``."""
    return weigh_and_mix(call, call.keys, call.values, slice(0, 1))[0].to(call.values.dtype)


ROUTE = Route("decode_cuda", accepts, lambda call: attend)
