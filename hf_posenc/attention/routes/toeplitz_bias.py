"""A bias that depends on distance alone: a 1-D table, passed to the kernel as a strided view, never as a matrix.

    score[i, j] = q_i · k_j · scaling + t[i − j]        for pairs within a window, or for all pairs

Let u be the table, largest distance first. With the query rows in reverse order, entry (r, j) is u[r + j]: a Hankel
matrix, which is a strided view of u with both strides 1. u is −∞ outside a window and, in a decoder, for later keys.
The rectangles given to the kernel leave out areas that are −∞ everywhere.

A learned table gets its gradient by summing the score gradient along anti-diagonals, block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from hf_posenc.attention import merge
from hf_posenc.attention.call import AttentionCall, causal_band
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.merge import PartialAttention
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes.band_cuts import is_window
from hf_posenc.attention.routes.learned_bias import ROWS as LEARNED_ROWS
from hf_posenc.attention.routes.learned_bias import Gradients, LearnedBias, gradients, pieces
from hf_posenc.core.regions import EVERYTHING, Band
from hf_posenc.core.terms import Bias, KeyBias, ToeplitzBias

Rectangle: TypeAlias = tuple[slice, slice]  # rows and keys
ROWS = 256  # of 128, 256, 512 the fastest at 2k
WINDOW_ROWS = 64  # of 64, 128, 256 the fastest with a window of 128; with one of 1,024 as fast as 128
# From 768 rows on, the kernel uses larger tiles, which are a fifth faster; but a rectangle of many rows cannot stop at
# the diagonal. So in long texts, LARGE rows share one rectangle: the keys before all of them.
LARGE, LONG = 1024, 4096


def accepts(call: AttentionCall) -> bool:
    """Whether the call is on the CPU, without a mask, and its terms are distance biases and perhaps a window."""
    terms = call.terms
    return (
        len(terms.bias) > 0
        and call.is_unmasked_suffix
        and all(is_of_distance(bias, terms.visible) for bias in terms.bias)
        and is_window(terms.visible)
        and terms.only("bias", "visible")
        and flash_cpu.usable(call.queries[0], call.keys[0], call.values)
    )


def is_of_distance(bias: Bias, visible: Band) -> bool:
    """Whether a bias is computed from distances here. Without a window, a linear bias is cheaper as a key bias."""
    return isinstance(bias, ToeplitzBias) or (
        isinstance(bias, KeyBias) and bias.slopes is not None and visible != EVERYTHING
    )


def prepare(call: AttentionCall) -> Callable[[AttentionCall], Tensor]:
    """The function that computes calls with these biases; their table is computed here."""
    table, band = table_of(call), causal_band(call.terms.visible, call.ctx.causal)
    if table.requires_grad and torch.is_grad_enabled():
        return partial(_learned, table, band)
    return partial(merge.attend, list(Hankel(table, call.query_length, call.key_length, band).partials()))


def _learned(table: Tensor, band: Band, call: AttentionCall) -> Tensor:
    query, key, value = call.queries[0], call.keys[0], call.values

    def cut(table: Tensor) -> Iterator[PartialAttention]:
        return Hankel(table, query.shape[2], key.shape[2], band).partials()

    return LearnedBias.apply(cut, partial(_gradients, band), call.scale, query, key, value, table)


def table_of(call: AttentionCall) -> Tensor:
    """Sum of a call's distance biases, ``[heads, queries + keys − 1]``, largest distance first as in `Hankel`."""
    distance = torch.arange(call.key_length - 1, -call.query_length, -1, device=call.values.device)
    total = sum(_values(bias, distance) for bias in call.terms.bias)
    return total * call.terms.logit_scale  # type: ignore[return-value]


def _values(bias: Bias, distance: Tensor) -> Tensor:
    if isinstance(bias, ToeplitzBias):
        return bias.of_distance(distance).float()
    assert isinstance(bias, KeyBias)
    assert bias.slopes is not None
    return -bias.slopes.float()[:, None] * distance


class Hankel:
    """Masks of a table, and the rectangles of pairs to compute. The rows of masks are in reverse order.

    Args:
        table: ``[heads, queries + keys − 1]``, largest distance first.
        queries, keys: their numbers.
        band: a window; the table is copied, and set to −∞ outside.
    """

    def __init__(self, table: Tensor, queries: int, keys: int, band: Band) -> None:
        self.table = table.clone(memory_format=torch.contiguous_format)
        self.queries, self.keys, self.band = queries, keys, band
        if band.nearest is not None:
            self.table[:, keys - band.nearest :] = -torch.inf
        if band.farthest is not None:
            self.table[:, : max(0, keys - band.farthest)] = -torch.inf

    def mask(self, rows: slice, keys: slice) -> Tensor:
        """Mask ``[1, heads, rows, keys]``, a view of the table."""
        heads, width = self.table.shape
        shape = (1, heads, rows.stop - rows.start, keys.stop - keys.start)
        return self.table.as_strided(shape, (heads * width, width, 1, 1), self.queries - rows.stop + keys.start)

    def seen(self, rows: slice) -> slice:
        """The keys that some queries see."""
        ahead = self.keys - self.queries
        return self.band.keys_seen(slice(rows.start + ahead, rows.stop + ahead), self.keys)

    def partials(self) -> Iterator[PartialAttention]:
        """Kernel calls that cover every visible pair once."""
        for rows, keys in self._rectangles():
            yield PartialAttention(0, rows, keys, mask=self.mask(rows, keys), flipped=True)

    def _rectangles(self) -> Iterator[Rectangle]:
        if self.band == EVERYTHING:  # nothing can be skipped, so one call computes everything
            yield slice(0, self.queries), slice(0, self.keys)
        elif self.band.farthest is not None:
            for rows in pieces(0, self.queries, WINDOW_ROWS):
                yield rows, self.seen(rows)
        else:
            long = self.keys >= LONG
            for block in pieces(0, self.queries, LARGE if long else ROWS):
                first = block.start + self.keys - self.queries if long else 0
                for rows in pieces(block.start, block.stop, ROWS):
                    yield rows, slice(first, self.seen(rows).stop)
                if first > 0:
                    yield block, slice(0, first)


def _gradients(band: Band, tensors: tuple[Tensor, ...], table: Tensor, scale: float) -> Gradients:
    """Gradients of query, key, value and table, from the first argument of `gradients`."""
    query, key, value, *of_rows = tensors
    queries, hankel = query.shape[2], Hankel(table, query.shape[2], key.shape[2], band)
    d_table = torch.zeros_like(table)
    reversed_tensors = query.flip(2), key, value, *(tensor.flip(2) for tensor in of_rows)

    def in_order(rows: slice) -> slice:
        return slice(queries - rows.stop, queries - rows.start)

    def write_bias(sample: int, head: int, rows: slice, seen: slice, bias: Tensor) -> None:
        bias.copy_(hankel.mask(in_order(rows), seen)[0, head])

    def add_gradient(sample: int, head: int, rows: slice, seen: slice, padded: Tensor) -> None:
        sums = anti_diagonals(padded)
        first = rows.start + seen.start
        d_table[head, first : first + len(sums)] += sums

    blocks = [(rows, hankel.seen(in_order(rows))) for rows in pieces(0, queries, LEARNED_ROWS)]
    d_query, d_key, d_value = gradients(reversed_tensors, scale, blocks, write_bias, add_gradient)
    return d_query.flip(2), d_key, d_value, d_table


def anti_diagonals(padded: Tensor) -> Tensor:
    """Sums over r + c = const of a matrix ``[…, n, m]`` that is followed by n columns of zeros, ``[…, n + m − 1]``.

    Read with rows that are one element shorter, the matrix is skewed: an anti-diagonal becomes a column.
    """
    n, columns = padded.shape[-2:]
    return padded.flatten(-2)[..., : n * (columns - 1)].unflatten(-1, (n, columns - 1)).sum(-2)


ROUTE = Route("toeplitz_bias", accepts, prepare)
