"""Grouped-query attention: several query heads share one key head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def products(query: Tensor, key: Tensor) -> Tensor:
    """q · k for queries ``[batch, heads, n, head_dim]`` and keys ``[batch or 1, kv_heads, key, head_dim]``.

    Keys are not repeated. Query head h reads key head h // (heads // kv_heads).

    Returns:
        ``[batch, heads, n, key]``.
    """
    if query.shape[1] == key.shape[1]:
        return query @ key.transpose(-1, -2)
    grouped = query.unflatten(1, (key.shape[1], -1))
    # Two steps in either direction: the strides of a combined step would specialize a traced graph to its length.
    joined = grouped.flatten(2, 3) @ key.transpose(-1, -2)
    return joined.unflatten(2, grouped.shape[2:4]).flatten(1, 2)


def half_products(query: Tensor, key: Tensor) -> Tensor:
    """`products` of half-precision tensors on CUDA, in float32 without a float32 copy of the keys."""
    (batch, heads, n, dim), (_, kv_heads, length, _) = query.shape, key.shape
    grouped = query.reshape(batch * kv_heads, heads // kv_heads * n, dim)
    return in_float32(grouped, key.reshape(batch * kv_heads, length, dim).mT).view(batch, heads, n, length)


def in_float32(one: Tensor, two: Tensor) -> Tensor:
    """Products of half-precision matrices ``[batch, n, m]`` in float32; torch supports this on CUDA only."""
    return torch.bmm(one, two, out_dtype=torch.float32)


def repeated(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values ``[batch, kv_heads, key, dim]``, repeated for every query head."""
    groups = query.shape[1] // key.shape[1]
    return (key, value) if groups == 1 else (key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1))


def packed_mask(mask: Tensor, query: Tensor, kv_heads: int) -> Tensor:
    """Mask for queries whose heads are packed into rows of the key head that they share.

    Args:
        mask: ``[batch or 1, heads or 1, n or 1, key]``.
        query: queries before packing, ``[batch, heads, n, head_dim]``.
        kv_heads: number of key heads.

    Returns:
        ``[batch or 1, kv_heads or 1, heads // kv_heads · n or 1, key]``.
    """
    _, heads, n, _ = query.shape
    if mask.shape[1] == 1:
        return mask if mask.shape[2] == 1 else mask.repeat(1, 1, heads // kv_heads, 1)
    return mask.expand(-1, -1, n, -1).reshape(mask.shape[0], kv_heads, -1, mask.shape[3])


def attend_packed(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, scale: float | None, dropout: float = 0.0
) -> Tensor:
    """`scaled_dot_product_attention` for one query per sample, ``[batch, heads, 1, value_dim]``.

    With grouped heads (``enable_gqa``), the CPU kernel reads a key for every query head. In half precision it is
    several times slower for one row of queries than for several.
    """
    (batch, heads, _, dim), kv_heads = query.shape, key.shape[1]
    mixed = functional.scaled_dot_product_attention(  # by attribute: other code replaces it
        query.reshape(batch, kv_heads, -1, dim), key, value, dropout_p=dropout, scale=scale,
        attn_mask=None if mask is None else packed_mask(mask, query, kv_heads),
    )  # fmt: skip
    return mixed.reshape(batch, heads, 1, value.shape[3])
