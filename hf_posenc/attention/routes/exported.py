"""Route of graphs for any length, and of graphs exported for training: all queries in one block.

A loop over blocks would fix the number of queries. An exported graph contains the operators of the forward pass only,
without the custom backward passes of the other routes.

Most calls in compiled graphs become one operator (`hf_posenc.attention.custom_operator`) and do not come here. Calls
that come here hold all scores in memory. A graph for one length (``dynamic=False``, or exported under `torch.no_grad`)
takes another route, and holds the scores of one block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes.dense_blocks import mix_rows, upcast
from hf_posenc.core.tracing import has_dynamic_length, is_traced


def accepts(call: AttentionCall) -> bool:
    """Whether a call is traced for any number of queries or keys, or exported with gradients enabled."""
    if not is_traced():
        return False
    trained = torch.compiler.is_exporting() and torch.is_grad_enabled()
    return trained or has_dynamic_length(call.query_length, call.key_length)


def attend(call: AttentionCall) -> Tensor:
    """Attention output ``[batch, heads, query, value_dim]``."""
    return mix_rows(call, *upcast(call), slice(0, call.query_length))


ROUTE = Route("exported", accepts, lambda call: attend)
