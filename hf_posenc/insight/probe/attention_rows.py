"""Attention weights of a few rows of a call at a time: never of all of them together.

Exact for every combination of terms, by the engine's own reference for a block of rows. Weights of n rows take
``heads · n · keys`` numbers, and are gone when the next block comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.routes import dense_blocks, length_rotation

BLOCK = 64


def chosen_rows(length: int, count: int, causal: bool) -> list[slice]:
    """Blocks of about ``count`` rows in all, spread evenly: over a text, or in a decoder over its second half.

    There every row has at least half of the text to look at, so that rows say the same about the same distances.
    """
    first = length // 2 if causal else 0
    room = length - first
    if count >= room:
        return [slice(start, min(start + BLOCK, length)) for start in range(first, length, BLOCK)]
    size = min(BLOCK, max(1, count // 4))
    number = max(1, count // size)
    gap = (room - size) / max(1, number - 1)
    starts = sorted({first + int(i * gap) for i in range(number)})
    return [slice(start, min(start + size, length)) for start in starts]


def weights_of(call: AttentionCall, rows: Sequence[slice]) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """For every block of rows, which they are, weights ``[heads, rows, key]`` and mixed values ``[heads, rows, dim]``.

    Args:
        call: of one text.
        rows: blocks that do not overlap.
    """
    keys, values = dense_blocks.upcast(call)
    for block in rows:
        parts = [weigh(run, keys, values, inner) for run, inner in runs_of(call, block)]
        weights, mixed = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
        yield block, weights, mixed


def runs_of(call: AttentionCall, block: slice) -> Iterator[tuple[AttentionCall, slice]]:
    """The block itself; where rotations differ by row, its runs of rows that share one, each turned."""
    if call.terms.rows is None:
        yield call, block
        return
    lengths = call.terms.rows.length_of(call.ctx.query_positions[0, block])
    for run, length in length_rotation.runs(lengths):
        rows = slice(block.start + run.start, block.start + run.stop)
        yield length_rotation.turned(call, rows, length), slice(0, rows.stop - rows.start)


def weigh(call: AttentionCall, keys: tuple[Tensor, ...], values: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """Weights and mixed values of a block of one text."""
    turned = keys if call.start is None else dense_blocks.upcast(call)[0]  # a run has keys of its own
    mixed, weights = dense_blocks.weigh_and_mix(call, turned, values, rows)
    return weights[0], mixed[0]
