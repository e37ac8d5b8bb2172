"""Grouped heads: several query heads read one key head, which is never repeated in memory."""

from __future__ import annotations

from torch import Tensor


def products(query: Tensor, key: Tensor) -> Tensor:
    """q · k of ``[batch, heads, n, head_dim]`` and ``[batch or 1, kv_heads, key, head_dim]``.

    Query head h reads key head h // (heads // kv_heads).

    Returns:
        ``[batch, heads, n, key]``.
    """
    batch, heads, rows, dim = query.shape
    groups = key.shape[1]
    grouped = query.reshape(batch, groups, heads // groups * rows, dim)
    return (grouped @ key.transpose(-1, -2)).view(batch, heads, rows, key.shape[2])
