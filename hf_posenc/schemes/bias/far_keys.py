"""Keys that are far from a whole block of queries, where a table of distances has one row for all that are farther.

A clipped distance then adds the same to the score of every such pair, or a sum of a value of the query and one of the
key. Only the keys nearby need a product, or a gather, for each pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from hf_posenc.core.terms import Block
from hf_posenc.core.tracing import is_traced

OfFar = Callable[[Block, int], Tensor]


def near_and_far(
    block: Block, first: int, farthest: int, *, causal: bool, near: Callable[[Block], Tensor], far: OfFar
) -> Tensor:
    """A bias ``[batch, heads, n, key]`` of a block whose positions run in steps of one.

    Args:
        block: of a bias that reads no scores.
        first: index of its first query among its keys; as a number, since a GPU would be waited for to read it.
        farthest: distance from which, on either side, all have the same row.
        causal: whether no key is ahead of its query.
        near: the bias of the block's keys nearby.
        far: the bias of keys that are all ``farthest`` or more behind (given that distance), or ahead (its negative);
            broadcasts to the same shape.
    """
    if is_traced():  # the graph is for any length
        return near(block)
    keys = block.key.shape[2]
    start = min(max(first - farthest + 1, 0), keys)
    stop = keys if causal else max(min(first + block.query.shape[2] - 1 + farthest, keys), start)
    if (start, stop) == (0, keys):
        return near(block)
    behind, here, ahead = (of_columns(block, slice(*ends)) for ends in ((0, start), (start, stop), (stop, keys)))
    parts = [(behind, farthest), (here, None), (ahead, -farthest)]
    biases = [near(part) if at is None else _spread(far(part, at), part) for part, at in parts if part.key.shape[2] > 0]
    return torch.cat(biases, dim=-1)


def of_columns(block: Block, columns: slice) -> Block:
    """The block with some of its keys, for a bias that reads no scores."""
    return replace(block, key=block.key[:, :, columns], key_positions=block.key_positions[:, columns])


def _spread(bias: Tensor, block: Block) -> Tensor:
    return bias.expand(*block.query.shape[:3], block.key.shape[2])
