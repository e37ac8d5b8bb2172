"""Length-dependent rotation (dynamic NTK) on a GPU, if almost every query has its own length: many queries at once.

A GPU takes some hundred microseconds to launch the kernels of one length, whatever they compute. Here the keys are
rotated for many queries at a time, enough to use the full memory bandwidth.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.core.geometry import Layout, Rotation
from hf_posenc.core.rotation import rotate_at_once, table

NUMBERS = 2**25  # in the rotated keys that exist at a time: 128 MiB in float32
FEW = 8  # with fewer queries per length, rotating all keys for each query costs less than launching more kernels


def is_faster(call: AttentionCall, lengths: int) -> bool:
    """Whether this is faster than runs: a call without gradients on a GPU has few queries of each length."""
    rotations = call.terms.row_rotation
    return (
        call.values.device.type != "cpu"
        and call.query_length < FEW * lengths
        and rotations is not None
        and rotations.frequencies_of is not None
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in (*call.queries, *call.keys, call.values)))
    )


def attend(call: AttentionCall, lengths: Tensor) -> Tensor:
    """Attention output ``[batch, heads, query, value_dim]`` of contiguous positions without a mask.

    Args:
        call: has a row rotation with `frequencies_of` as its only term.
        lengths: length at each query, ``[query]``.
    """
    rotations = call.terms.row_rotation
    assert rotations is not None
    assert rotations.frequencies_of is not None
    frequencies, layout = rotations.frequencies_of(lengths), rotations.rotation_of(1).layout
    size = max(1, NUMBERS // call.keys[0].numel())
    parts = []
    for start in range(0, call.query_length, size):
        rows = slice(start, min(start + size, call.query_length))
        parts.append(attend_rows(call, layout, frequencies[rows, None], rows))
    return torch.cat(parts, dim=2)


def attend_rows(call: AttentionCall, layout: Layout, frequencies: Tensor, rows: slice) -> Tensor:
    """Attention output of some queries ``[batch, heads, n, value_dim]``.

    Args:
        call: holds unrotated queries and keys.
        layout: which channels form a pair.
        frequencies: of the queries, ``[n, 1, pairs]``.
        rows: the n queries.
    """
    rotation = Rotation(frequencies, layout)
    seen = call.first_query + rows.stop if call.ctx.causal else call.key_length
    key, value = call.keys[0][:, :, :seen], call.values[:, :, :seen]
    exact = torch.promote_types(key.dtype, torch.float32)
    query = call.queries[0][:, :, rows].transpose(1, 2)[..., None, :].to(exact)  # [batch, n, heads, 1, head_dim]
    query_positions, key_positions = call.ctx.query_positions[0, rows, None], call.ctx.key_positions[:1, :seen]
    query = rotate_at_once(query, layout, table(rotation, query_positions))[..., 0, :]
    kv_heads, rotates_all = key.shape[1], 2 * frequencies.shape[-1] == key.shape[-1]
    # Channels that are not rotated are concatenated with the rotated ones, which exist once per query.
    key = key[:, None].to(exact).expand(-1, 1 if rotates_all else len(frequencies), -1, -1, -1)
    keys = rotate_at_once(key, layout, table(rotation, key_positions))  # [batch, n, kv_heads, key, head_dim]
    scores = query.unflatten(2, (kv_heads, -1)) @ keys.transpose(-1, -2)  # [batch, n, kv_heads, group, key]
    scores = scores * call.scale
    if call.ctx.causal:
        own = torch.arange(rows.start, rows.stop, device=key.device) + call.first_query
        later = torch.arange(seen, device=key.device) > own[:, None]
        scores = scores.masked_fill(later[:, None, None], -torch.inf)
    weights = scores.softmax(-1).to(value.dtype).transpose(1, 2)  # [batch, kv_heads, n, group, key]
    out = weights.flatten(2, 3) @ value
    return out.unflatten(2, weights.shape[2:4]).transpose(2, 3).flatten(1, 2)
