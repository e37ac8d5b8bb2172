"""Route of graphs for any length: all queries at once, as a loop over blocks would fix their number.

Most calls of compiled graphs are one operator of them (`hf_posenc.attention.custom_operator`) and do not come here. Of
others all scores are in memory; a graph of one length (``dynamic=False``) goes by blocks, with those of one block.
"""

from __future__ import annotations

from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.routes.dense_blocks import mix_rows, upcast
from hf_posenc.core.tracing import has_dynamic_length, is_traced


def accepts(call: AttentionCall) -> bool:
    """Calls traced for any number of queries or keys."""
    return is_traced() and has_dynamic_length(call.query_length, call.key_length)


def attend(call: AttentionCall) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    keys, values = upcast(call)
    return mix_rows(call, keys, values, slice(0, call.query_length))
