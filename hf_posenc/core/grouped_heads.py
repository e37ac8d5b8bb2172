"""Grouped-query attention: several query heads share one key head."""

from __future__ import annotations

from torch import Tensor


def products(query: Tensor, key: Tensor) -> Tensor:
    """q · k of ``[batch, heads, n, head_dim]`` and ``[batch or 1, kv_heads, key, head_dim]``, without repeating keys.

    Query head h belongs to key head h // (heads // kv_heads).

    Returns:
        ``[batch, heads, n, key]``.
    """
    grouped = query.unflatten(1, (key.shape[1], -1))
    # Two steps in either direction: the strides of a combined one would fix the length of a traced graph.
    together = grouped.flatten(2, 3) @ key.transpose(-1, -2)
    return together.unflatten(2, grouped.shape[2:4]).flatten(1, 2)


def repeated(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values ``[batch, kv_heads, key, dim]`` with a head for every head of the queries."""
    groups = query.shape[1] // key.shape[1]
    return (key, value) if groups == 1 else (key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1))
