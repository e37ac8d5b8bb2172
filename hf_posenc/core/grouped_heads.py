"""Grouped heads: several query heads read one key head, which is never repeated in memory."""

from __future__ import annotations

from torch import Tensor


def products(query: Tensor, key: Tensor) -> Tensor:
    """q · k of ``[batch, heads, n, head_dim]`` and ``[batch or 1, kv_heads, key, head_dim]``.

    Query head h reads key head h // (heads // kv_heads).

    Returns:
        ``[batch, heads, n, key]``.
    """
    grouped = query.unflatten(1, (key.shape[1], -1))
    # In two steps, here and back: strides of one that does both at once would tie a graph to its length.
    together = grouped.flatten(2, 3) @ key.transpose(-1, -2)
    return together.unflatten(2, grouped.shape[2:4]).flatten(1, 2)
