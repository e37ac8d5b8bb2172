"""Graphs that hold for texts of any length: all rows in one piece, as a loop over blocks would fix how many there are.

The scores of a call are held. A graph of one length (``dynamic=False``) goes by blocks and holds those of one block.
"""

from __future__ import annotations

from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.routes.dense_blocks import mix_rows, upcast
from hf_posenc.core.tracing import has_dynamic_length


def accepts(call: AttentionCall) -> bool:
    """Calls written down for any number of queries or keys."""
    return has_dynamic_length(call.query_length, call.key_length)


def attend(call: AttentionCall) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    keys, values = upcast(call)
    return mix_rows(call, keys, values, slice(0, call.query_length))
