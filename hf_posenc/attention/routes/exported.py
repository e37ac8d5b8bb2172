"""Graphs that hold for texts of any length: all rows in one piece, as a loop over blocks would fix how many there are.

The scores of a call are held. A graph of one length (``dynamic=False``) goes by blocks and holds those of one block.
"""

from __future__ import annotations

from torch import Tensor

from hf_posenc.attention.call import Call
from hf_posenc.attention.routes.dense_blocks import mix_rows, upcast
from hf_posenc.core.tracing import open_length


def accepts(call: Call) -> bool:
    """Calls written down for any number of queries or keys."""
    return open_length(call.query_length, call.key_length)


def attend(call: Call) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    keys, values = upcast(call)
    return mix_rows(call, keys, values, slice(0, call.query_length))
