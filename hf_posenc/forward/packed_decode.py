"""The host's own attention function for a decode query on a CPU, with the heads that share a key head as its rows.

transformers asks torch for grouped heads, which takes up to twice as long in float32, and five times in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hf_posenc.core.grouped_heads import attend_packed
from hf_posenc.core.tracing import is_traced

HostAttention = Callable[..., tuple[Tensor, Tensor | None]]


def for_queries(function: HostAttention, query: Tensor, key: Tensor) -> HostAttention:
    """The function for calls like one: that of the host, or a quicker one with the same result.

    Args:
        function: of the attention backend; one that somebody registered in the place of transformers' own is used.
        query: ``[batch, heads, query, head_dim]``.
        key: ``[batch, kv_heads, key, head_dim]``.
    """
    quicker = query.shape[2] == 1 and query.shape[1] != key.shape[1] and query.device.type == "cpu"
    if quicker and function is sdpa_attention_forward and not is_traced():
        return partial(attend_or, function)
    return function


def attend_or(
    function: HostAttention,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout: float,
    scaling: float,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    **host: Any,
) -> tuple[Tensor, Tensor | None]:
    """Mixed values ``[batch, 1, heads, value_dim]``; by ``function`` where no heads are shared, or with more terms."""
    more = position_bias is not None or softcap is not None or "cu_seq_lens_q" in host  # of continuous batches
    if query.shape[1] == key.shape[1] or more:
        given = {"dropout": dropout, "scaling": scaling, "position_bias": position_bias, "softcap": softcap}
        return function(module, query, key, value, mask, **given, **host)
    return attend_packed(query, key, value, mask, scale=scaling, dropout=dropout).transpose(1, 2), None
