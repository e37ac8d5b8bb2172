"""The general route: a block of query rows at a time, scores in float32. Exact for every combination of terms.

    o_i = Σ_j softmax_j(logit_scale · (q_i · k_j · scaling + bias_ij)) v_j       over visible j

Memory is O(rows · keys · heads) for one block, and in training each block is computed again in the backward pass
instead of being kept. With one block of all rows it is the reference that returns the attention weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hf_posenc.attention.call import Call
from hf_posenc.terms import Band, BlockBias, KeyBias, ToeplitzBias

ROWS = 128  # of 64, 128, 256 the fastest on two CPU cores at length 2048


def attend_by_blocks(call: Call) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    starts = range(0, call.query_length, ROWS)
    keys, values = upcast(call)
    mixed = []
    for start in starts:
        rows = slice(start, min(start + ROWS, call.query_length))
        if torch.is_grad_enabled() and len(starts) > 1:  # a learned bias may be all that has a gradient
            mixed.append(checkpoint(mix_rows, call, keys, values, rows, use_reentrant=False))
        else:
            mixed.append(mix_rows(call, keys, values, rows))
    return torch.cat(mixed, dim=2)


def attend_with_weights(call: Call) -> tuple[Tensor, Tensor]:
    """Mixed values and the attention weights ``[batch, heads, query, key]``: the reference, O(query · key) memory."""
    keys, values = upcast(call)
    weights = weigh_rows(call, keys, slice(0, call.query_length))
    return spread(weights, values).to(call.values.dtype), weights.to(call.values.dtype)


def upcast(call: Call) -> tuple[tuple[Tensor, ...], Tensor]:
    """Keys and values in float32: once a call, not once a block."""
    return tuple(k.float() for k in call.keys), call.values.float()


def mix_rows(call: Call, keys: tuple[Tensor, ...], values: Tensor, rows: slice) -> Tensor:
    """Mixed values of some rows, in the dtype of the call."""
    return spread(weigh_rows(call, keys, rows), values).to(call.values.dtype)


def weigh_rows(call: Call, keys: tuple[Tensor, ...], rows: slice) -> Tensor:
    """Attention weights ``[batch, heads, rows, key]``, float32, after dropout."""
    distance = call.ctx.distance(rows)
    bands = call.terms.bands
    logits = scores(call.queries[0][:, :, rows].float(), keys[0]) * call.scaling
    for query, key, band in zip(call.queries[1:], keys[1:], bands[1:], strict=True):
        of_region = scores(query[:, :, rows].float(), key) * call.scaling
        logits = torch.where(inside(band, distance)[:, None], of_region, logits)
    for bias in call.terms.bias:
        logits = logits + bias_of_rows(bias, call, keys[0], rows, distance)
    logits = logits * call.terms.logit_scale
    logits = hide(logits, call, rows, distance)
    weights = torch.softmax(logits, dim=-1)
    return nn.functional.dropout(weights, call.dropout) if call.dropout else weights


def bias_of_rows(
    bias: KeyBias | ToeplitzBias | BlockBias, call: Call, keys: Tensor, rows: slice, distance: Tensor
) -> Tensor:
    """A bias as it is added to the scores of some rows, ``[batch or 1, heads, rows or 1, key]``."""
    if isinstance(bias, KeyBias):
        return bias.values[:, :, None, :]
    if isinstance(bias, ToeplitzBias):
        return bias.of_distance(distance).transpose(0, 1)
    return bias.of_block(call.queries[0][:, :, rows].float(), keys, distance)


def hide(logits: Tensor, call: Call, rows: slice, distance: Tensor) -> Tensor:
    """Logits with unseen pairs pushed to the end of float32; a row that sees nothing stays finite."""
    lowest = torch.finfo(logits.dtype).min
    visible = call.terms.visible
    if call.mask is None and call.ctx.causal:
        visible = visible & Band(0, None)
    if visible != Band():
        logits = logits.masked_fill(~inside(visible, distance)[:, None], lowest)
    mask = call.mask_of(rows)
    if mask is None:
        return logits
    mask = mask[..., : logits.shape[-1]]
    if mask.dtype == torch.bool:
        return logits.masked_fill(~mask, lowest)
    hidden = mask <= torch.finfo(mask.dtype).min
    return (logits + mask.masked_fill(hidden, 0.0)).masked_fill(hidden, lowest)


def inside(band: Band, distance: Tensor) -> Tensor:
    """Which distances lie in a band, bool, of the same shape."""
    seen = torch.ones_like(distance, dtype=torch.bool)
    if band.nearest is not None:
        seen = seen & (distance >= band.nearest)
    if band.farthest is not None:
        seen = seen & (distance < band.farthest)
    return seen


def scores(query: Tensor, key: Tensor) -> Tensor:
    """q · k for grouped heads without repeating keys: ``[batch, heads, rows, key]``."""
    batch, heads, rows, dim = query.shape
    groups = key.shape[1]
    grouped = query.reshape(batch, groups, heads // groups * rows, dim)
    return (grouped @ key.transpose(-1, -2)).view(batch, heads, rows, key.shape[2])


def spread(weights: Tensor, values: Tensor) -> Tensor:
    """Σ_j w_ij v_j for grouped heads: ``[batch, heads, rows, value_dim]``."""
    batch, heads, rows, keys = weights.shape
    groups = values.shape[1]
    grouped = weights.reshape(batch, groups, heads // groups * rows, keys)
    return (grouped @ values).view(batch, heads, rows, values.shape[-1])
