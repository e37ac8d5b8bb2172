"""Attention weights of an attention call, a block of rows at a time, so that memory stays bounded.

Exact for every combination of terms: the engine's dense route computes them. A block of n rows takes
``heads · n · keys`` numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.routes import dense_blocks, length_rotation

BLOCK = 64


def chosen_rows(length: int, count: int, causal: bool) -> list[slice]:
    """Choose blocks of about ``count`` rows in total, spread evenly over a text; in a decoder over its second half.

    In the second half every row sees at least half of the text, so that rows are comparable at each distance.
    """
    first = length // 2 if causal else 0
    available = length - first
    if count >= available:
        return [slice(start, min(start + BLOCK, length)) for start in range(first, length, BLOCK)]
    size = min(BLOCK, max(1, count // 4))
    number = max(1, count // size)
    stride = (available - size) / max(1, number - 1)
    starts = sorted({first + int(i * stride) for i in range(number)})
    return [slice(start, min(start + size, length)) for start in starts]


def weights_of(call: AttentionCall, rows: Sequence[slice]) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Compute attention weights and outputs for blocks of rows.

    Args:
        call: attention call with a batch of one.
        rows: blocks that do not overlap.

    Yields:
        The block, weights ``[heads, rows, key]`` and outputs ``[heads, rows, dim]``.
    """
    keys, values = dense_blocks.upcast(call)
    for block in rows:
        parts = [weigh(run, keys, values, inner) for run, inner in runs_of(call, block)]
        weights, mixed = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
        yield block, weights, mixed


def runs_of(call: AttentionCall, block: slice) -> Iterator[tuple[AttentionCall, slice]]:
    """Split a block into runs of rows that share one rotation, each rotated; usually the block itself."""
    if call.terms.row_rotation is None:
        yield call, block
        return
    lengths = call.terms.row_rotation.length_of(call.ctx.query_positions[0, block])
    for run, length in length_rotation.runs(lengths):
        rows = slice(block.start + run.start, block.start + run.stop)
        yield length_rotation.rotated_call(call, rows, length), slice(0, rows.stop - rows.start)


def weigh(call: AttentionCall, keys: tuple[Tensor, ...], values: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """Compute weights and outputs of a block of rows."""
    rotated = keys if call.start is None else dense_blocks.upcast(call)[0]  # a run has keys of its own
    mixed, weights = dense_blocks.weigh_and_mix(call, rotated, values, rows)
    return weights[0], mixed[0]
