"""Grouped-query attention: several query heads share one key head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def products(query: Tensor, key: Tensor) -> Tensor:
    """q · k of ``[batch, heads, n, head_dim]`` and ``[batch or 1, kv_heads, key, head_dim]``, without repeating keys.

    Query head h belongs to key head h // (heads // kv_heads).

    Returns:
        ``[batch, heads, n, key]``.
    """
    if query.shape[1] == key.shape[1]:
        return query @ key.transpose(-1, -2)
    grouped = query.unflatten(1, (key.shape[1], -1))
    # Two steps in either direction: the strides of a combined one would fix the length of a traced graph.
    together = grouped.flatten(2, 3) @ key.transpose(-1, -2)
    return together.unflatten(2, grouped.shape[2:4]).flatten(1, 2)


def half_products(query: Tensor, key: Tensor) -> Tensor:
    """The same of tensors in half precision on CUDA, in float32, without a copy of the keys in float32."""
    (batch, heads, n, dim), (_, kv_heads, length, _) = query.shape, key.shape
    grouped = query.reshape(batch * kv_heads, heads // kv_heads * n, dim)
    return in_float32(grouped, key.reshape(batch * kv_heads, length, dim).mT).view(batch, heads, n, length)


def in_float32(one: Tensor, two: Tensor) -> Tensor:
    """Products of matrices in half precision ``[batch, n, m]``, in float32; torch has it for CUDA alone."""
    return torch.bmm(one, two, out_dtype=torch.float32)


def repeated(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values ``[batch, kv_heads, key, dim]`` with a head for every head of the queries."""
    groups = query.shape[1] // key.shape[1]
    return (key, value) if groups == 1 else (key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1))


def packed_mask(mask: Tensor, query: Tensor, kv_heads: int) -> Tensor:
    """The mask of queries ``[batch, heads, n, head_dim]`` whose heads are rows of the key head that they share.

    Args:
        mask: ``[batch or 1, heads or 1, n or 1, key]``.
        query: before its heads are packed.
        kv_heads: heads of the keys.

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
    """`scaled_dot_product_attention` of one query a sample, ``[batch, heads, 1, value_dim]``.

    The kernel for CPUs, asked for grouped heads (``enable_gqa``), reads a key for every query head, and in half
    precision it is several times as slow with one row of queries as with more.
    """
    (batch, heads, _, dim), kv_heads = query.shape, key.shape[1]
    mixed = functional.scaled_dot_product_attention(  # looked up, as others replace it
        query.reshape(batch, kv_heads, -1, dim), key, value, dropout_p=dropout, scale=scale,
        attn_mask=None if mask is None else packed_mask(mask, query, kv_heads),
    )  # fmt: skip
    return mixed.reshape(batch, heads, 1, value.shape[3])
