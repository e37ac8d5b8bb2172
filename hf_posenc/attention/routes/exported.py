"""Route of graphs for any length, and of those that are exported to be trained: all queries at once.

A loop over blocks would fix the number of queries. An exported graph has the operators of a forward pass alone, without
the backward passes that the other routes bring along.

Most calls of compiled graphs are one operator of them (`hf_posenc.attention.custom_operator`) and do not come here. Of
others all scores are in memory; a graph of one length (``dynamic=False``, or exported under `torch.no_grad`) goes by
blocks, with those of one block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes.dense_blocks import mix_rows, upcast
from hf_posenc.core.tracing import has_dynamic_length, is_traced


def accepts(call: AttentionCall) -> bool:
    """Calls traced for any number of queries or keys, or exported where gradients are enabled."""
    if not is_traced():
        return False
    trained = torch.compiler.is_exporting() and torch.is_grad_enabled()
    return trained or has_dynamic_length(call.query_length, call.key_length)


def attend(call: AttentionCall) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    keys, values = upcast(call)
    return mix_rows(call, keys, values, slice(0, call.query_length))


ROUTE = Route("exported", accepts, attend)
