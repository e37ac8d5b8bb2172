"""Helpers for biases that depend on the distance: compute one value per distance, not per query-key pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import embedding

from hf_posenc.core.constants import exact_dtype
from hf_posenc.core.terms import Block
from hf_posenc.core.tracing import is_traced


def per_distance(function: Callable[[Tensor], Tensor], distance: Tensor) -> Tensor:
    """Evaluate a function of the distance at every pair, once for each distance that occurs.

    Args:
        function: ``[n]`` to ``[heads, n]``, with autograd.
        distance: any shape ``[…]``.

    Returns:
        ``[heads, …]``.
    """
    # While tracing, distances are unknown. Fractional distances, and those of a single query, differ for every pair.
    # The test for tracing comes first, because numel() of a shape would fix the length of the graph.
    if is_traced() or distance.is_floating_point() or distance.shape[:-1].numel() == 1:
        return function(distance.flatten()).unflatten(-1, distance.shape)
    low, high = (int(end) for end in distance.aminmax())
    if high - low >= distance.numel():
        return function(distance.flatten()).unflatten(-1, distance.shape)
    values = function(torch.arange(low, high + 1, device=distance.device))
    return embedding(distance - low, values.T).movedim(-1, 0)


def by_head(factors: Tensor, distance: Tensor) -> Tensor:
    """Outer product of ``factors [heads]`` and ``distance […]``, ``[heads, …]``."""
    return factors.view(-1, *(1,) * distance.ndim) * distance


def exact(distance: Tensor) -> Tensor:
    """The distance in float64, to keep products with large distances exact; float32 on Metal, which has no float64."""
    return distance.to(exact_dtype(distance.device))


def clipped(distance: Tensor, farthest: int) -> Tensor:
    """Row of each distance in a table of ``2 · farthest + 1`` rows, in Shaw's order: the earliest keys first.

    Args:
        distance: query − key, whole numbers, any shape.
        farthest: largest distance, in either direction; greater ones are clipped.
    """
    return (-distance).clamp(-farthest, farthest) + farthest


def skewed(query: Tensor, table: Tensor, row_of: Callable[[Tensor], Tensor], block: Block) -> Tensor:
    """q_i · table[row of i − j] of a block whose positions run in steps of one, ``[batch, heads, n, key]``.

    Every query is multiplied with the row of every distance that occurs, the largest distance first. Pair (r, j) is
    then in column n − 1 − r + j. In a view whose rows are one element shorter, it is in column j, without a gather.

    Args:
        query: ``[batch, heads, n, head_dim]``.
        table: ``[rows, head_dim]`` or ``[heads, rows, head_dim]``.
        row_of: function from whole distances ``[m]`` to rows of the table.
        block: the block of these queries.
    """
    n, keys, distances = query.shape[2], block.key.shape[2], block.distances
    if n == 1:  # on the last axis, gather is ten times as fast as index_select
        products = query @ table.transpose(-1, -2)
        return products.gather(-1, row_of(distances).expand(*products.shape[:-1], -1))
    codes = table.index_select(-2, row_of(distances))
    products = query @ codes.transpose(-1, -2)
    # Not as_strided, because a compiler refuses to write into its result.
    shorter = products.shape[-1] - 1
    return products.flatten(-2)[..., n - 1 : n - 1 + n * shorter].unflatten(-1, (n, shorter))[..., :keys]


def query_scores(query: Tensor, table: Tensor, row: Tensor) -> Tensor:
    """q_i · table[row_ij], ``[batch, heads, n, key]``.

    Args:
        query: ``[batch, heads, n, head_dim]``.
        table: ``[rows, head_dim]``.
        row: ``[batch or 1, n, key]``.
    """
    codes = table.T
    if is_traced():  # a batch; with a matrix torch.export would compare the strides of the queries with their number
        codes = codes[None]
    products = query @ codes
    return products.gather(-1, row[:, None].expand(*query.shape[:3], row.shape[-1]))


def key_scores(key: Tensor, table: Tensor, row: Tensor, *, heads: int) -> Tensor:
    """k_j · table[row_ij], ``[batch, heads, n, key]``, for ``key [batch, kv_heads, key, head_dim]``."""
    products = table @ key.transpose(-1, -2)  # [batch, kv_heads, rows, key]
    scores = products.gather(-2, row[:, None].expand(*key.shape[:2], *row.shape[1:]))
    return scores.repeat_interleave(heads // key.shape[1], dim=1)


OfFar = Callable[[Block, int], Tensor]


def near_and_far(
    block: Block, first: int, farthest: int, *, causal: bool, near: Callable[[Block], Tensor], far: OfFar
) -> Tensor:
    """A clipped bias ``[batch, heads, n, key]`` of a block whose positions run in steps of one.

    Args:
        block: block of a bias that reads no scores.
        first: index of the first query among the keys, as a Python number: reading it would wait for a GPU.
        farthest: distance from which on, in either direction, the bias is constant.
        causal: whether no key is later than its query.
        near: computes the bias of a block at any distances.
        far: computes the bias of a block whose keys all have a distance of at least ``farthest``, or at most its
            negative. It receives that distance; its result broadcasts to the same shape.
    """
    if is_traced():  # the graph is for any length
        return near(block)
    keys = block.key.shape[2]
    start = min(max(first - farthest + 1, 0), keys)
    stop = keys if causal else max(min(first + block.query.shape[2] - 1 + farthest, keys), start)
    if (start, stop) == (0, keys):
        return near(block)
    earlier, middle, later = (with_columns(block, slice(*ends)) for ends in ((0, start), (start, stop), (stop, keys)))
    parts = [(earlier, farthest), (middle, None), (later, -farthest)]
    biases = [near(part) if at is None else _spread(far(part, at), part) for part, at in parts if part.key.shape[2] > 0]
    return torch.cat(biases, dim=-1)


def with_columns(block: Block, columns: slice) -> Block:
    """The block restricted to some keys, for a bias that reads no scores."""
    return replace(block, key=block.key[:, :, columns], key_positions=block.key_positions[:, columns])


def _spread(bias: Tensor, block: Block) -> Tensor:
    return bias.expand(*block.query.shape[:3], block.key.shape[2])


def bucket_starts(buckets: int, span: int) -> tuple[int, ...]:
    """The smallest distance of each bucket after the first.

    Bucket m + c, c ≥ 1, starts at the smallest n with (n / m)^(m − 1) > ((span − 1) / m)^(c − 1). This is computed in
    integers, because a rounded logarithm may be wrong at an exact power.
    """
    exact = buckets // 2
    starts = list(range(1, exact + 1))
    for c in range(1, buckets - exact + 1):
        widest = ((span - 1) / exact) ** ((c - 1) / (exact - 1))
        n = max(starts[-1], int(exact * widest) - 1, exact + 1)  # at most a little too small
        while n ** (exact - 1) * exact ** (c - 1) <= (span - 1) ** (c - 1) * exact ** (exact - 1):
            n += 1
        starts.append(n)
    return tuple(starts)
