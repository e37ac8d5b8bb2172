"""A bias of the distance alone: a 1-D table, passed to the kernel as a strided view, never as a matrix.

    score[i, j] = q_i · k_j · scaling + t[i − j]

With the query rows in reverse order, entry (r, j) is u[r + j] for u the reversed table: a Hankel matrix, which is a
strided view of u with both strides 1. Causally, u is −∞ for the future, and blocks of rows stop at their last key. A
learned table gets its gradient by summing the score gradient along anti-diagonals, block by block. Forward and backward
pass of this one view take more than 200 lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import MethodType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.merge import merge_into
from hf_posenc.attention.routes.bias_gradient import ROWS as LEARNED_ROWS
from hf_posenc.attention.routes.bias_gradient import Gradients
from hf_posenc.core.terms import ToeplitzBias

Rectangle: TypeAlias = tuple[slice, slice]  # rows and keys
ROWS = 256  # of 128, 256, 512 the fastest at 2k
# From 768 rows on the kernel takes them in larger tiles, which it does a fifth faster; but a rectangle of many rows
# cannot stop at the diagonal. So many rows share what lies behind all of them, once that is long enough to be worth it.
TOGETHER, LONG = 1024, 4096


def accepts(call: AttentionCall) -> bool:
    """Prefill on the CPU, with or without a cache, with distance biases and no other terms."""
    terms = call.terms
    return (
        len(terms.bias) > 0
        and call.last_rows
        and all(isinstance(b, ToeplitzBias) for b in terms.bias)
        and terms.only("bias")
        and flash_cpu.usable(call.queries[0], call.keys[0], call.values)
    )


def attend(call: AttentionCall) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    query, key, value = call.queries[0], call.keys[0], call.values
    scale = call.scaling * call.terms.logit_scale
    length = call.key_length
    farthest_ahead = call.query_length - 1  # distance of query 0 to the last key

    def table() -> Tensor:
        distance = torch.arange(length - 1, -farthest_ahead - 1, -1, device=query.device)  # it falls: u
        return table_of(call, distance)

    if torch.is_grad_enabled():
        return Tabled.apply(query, key, value, table(), call.ctx.causal, scale)
    # Layers whose biases are the same method of a scheme share its table; other functions have one per layer.
    functions = tuple(b.of_distance for b in call.terms.bias if isinstance(b, ToeplitzBias))
    use = ("table", functions, call.query_length, length, call.terms.logit_scale)
    kept = call.ctx.once(use, table) if all(isinstance(f, MethodType) for f in functions) else table()
    if call.query_length == 1 and call.ctx.causal:
        return flash_cpu.attend(query, key, value, causal=False, mask=kept[None, :, None, :], scale=scale)[0]
    return _forward(query, key, value, kept, call.ctx.causal, scale)[0]


def table_of(call: AttentionCall, distance: Tensor) -> Tensor:
    """All distance biases of a call at some distances, ``[heads, distance]``, float32."""
    total = sum(b.of_distance(distance).float() for b in call.terms.bias if isinstance(b, ToeplitzBias))
    return total * call.terms.logit_scale  # type: ignore[return-value]


@dataclass(frozen=True)
class Hankel:
    """A table ``[heads, queries + keys − 1]``, largest distance first, as masks of reversed rows; the future is −∞."""

    table: Tensor
    queries: int
    keys: int

    @classmethod
    def of(cls, table: Tensor, queries: int, keys: int, *, causal: bool) -> Hankel:
        """A copy of the table."""
        u = table.clone(memory_format=torch.contiguous_format)
        if causal:
            u[:, keys:] = -torch.inf
        return cls(u, queries, keys)

    def mask(self, rows: slice, keys: slice) -> Tensor:
        """``[1, heads, rows, keys]``, a view."""
        heads, width = self.table.shape
        shape = (1, heads, rows.stop - rows.start, keys.stop - keys.start)
        return self.table.as_strided(shape, (heads * width, width, 1, 1), self.queries - rows.stop + keys.start)


def _blocks(queries: int, keys: int, causal: bool) -> Iterator[tuple[slice, list[Rectangle]]]:
    """Blocks of rows, and the rectangles each consists of; the last may add to rows that others have set."""
    if not causal:
        # Nothing can be skipped, and one call does it all.
        yield slice(0, queries), [(slice(0, queries), slice(0, keys))]
        return
    ahead, long = keys - queries, keys >= LONG
    for start in range(0, queries, TOGETHER if long else ROWS):
        end = min(start + (TOGETHER if long else ROWS), queries)
        first = start + ahead if long else 0
        stops = [*range(start + ROWS, end, ROWS), end]
        near = [(slice(s, stop), slice(first, stop + ahead)) for s, stop in pairwise([start, *stops])]
        yield slice(start, end), near + ([(slice(start, end), slice(0, first))] if first > 0 else [])


def _forward(
    query: Tensor, key: Tensor, value: Tensor, table: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    hankel = Hankel.of(table, query.shape[2], key.shape[2], causal=causal)
    out, lse = torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)
    for block, rectangles in _blocks(hankel.queries, hankel.keys, causal):
        merging = rectangles[-1][1].start < rectangles[0][1].start
        # Parts are merged in float32: where they stand, if that is what the output is.
        mixed = out[:, :, block].float() if merging else out[:, :, block]
        for rows, seen in rectangles:
            more, more_lse = flash_cpu.attend(
                query[:, :, rows].flip(2), key[:, :, seen], value[:, :, seen],
                causal=False, mask=hankel.mask(rows, seen), scale=scale,
            )  # fmt: skip
            more, more_lse = more.flip(2), more_lse.flip(2)
            if seen.start < rectangles[0][1].start:
                merge_into(mixed, lse[:, :, rows], more, more_lse)
            else:
                mixed[:, :, rows.start - block.start : rows.stop - block.start], lse[:, :, rows] = more, more_lse
        if mixed.dtype != out.dtype:
            out[:, :, block] = mixed
    return out, lse


class Tabled(torch.autograd.Function):
    """The same with gradients, also for the table ``[heads, queries + keys − 1]``, largest distance first."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, table: Tensor, causal: bool, scale: float
    ) -> Tensor:
        """Mixed values; saves the tensors of the backward pass."""
        out, lse = _forward(query, key, value, table, causal, scale)
        ctx.save_for_backward(query, key, value, table, out, lse)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the tensors that `forward` was given."""
        query, key, value, table, out, lse = ctx.saved_tensors
        hankel = Hankel.of(table, query.shape[2], key.shape[2], causal=ctx.causal)
        tensors = (query, key, value, out, lse, grad)
        if ctx.needs_input_grad[3]:
            return *_with_table(hankel, tensors, ctx.causal, ctx.scale), None, None
        return *_by_kernel(hankel, tensors, ctx.causal, ctx.scale), None, None, None


def _by_kernel(hankel: Hankel, tensors: tuple[Tensor, ...], causal: bool, scale: float) -> tuple[Tensor, ...]:
    """Gradients of query, key and value under a fixed table."""
    query, key, value, out, lse, grad = tensors
    d_query, d_key, d_value = (torch.zeros_like(t, dtype=torch.float32) for t in (query, key, value))
    for _, rectangles in _blocks(hankel.queries, hankel.keys, causal):
        for rows, seen in rectangles:
            g, q, o, total = (t[:, :, rows].flip(2) for t in (grad, query, out, lse))
            dq, dk, dv = flash_cpu.gradient(
                g, q, key[:, :, seen], value[:, :, seen], o, total,
                causal=False, mask=hankel.mask(rows, seen), scale=scale,
            )  # fmt: skip
            d_query[:, :, rows] += dq.flip(2)
            d_key[:, :, seen] += dk
            d_value[:, :, seen] += dv
    return tuple(d.to(t.dtype) for d, t in zip((d_query, d_key, d_value), (query, key, value), strict=True))


def _with_table(hankel: Hankel, tensors: tuple[Tensor, ...], causal: bool, scale: float) -> tuple[Tensor, ...]:
    """Gradients of query, key, value and table."""
    queries, keys = hankel.queries, hankel.keys
    ahead, d_table = keys - queries, torch.zeros_like(hankel.table)
    blocks = []  # of reversed rows, counted from the last one
    for start in range(0, queries, LEARNED_ROWS):
        end = min(start + LEARNED_ROWS, queries)
        blocks.append((slice(queries - end, queries - start), slice(0, end + ahead if causal else keys)))

    def fill(sample: int, head: int, rows: slice, seen: slice, bias: Tensor) -> None:
        there = slice(queries - rows.stop, queries - rows.start)
        bias.copy_(hankel.mask(there, seen)[0, head])

    def take(sample: int, head: int, rows: slice, seen: slice, padded: Tensor) -> None:
        sums = anti_diagonals(padded)
        d_table[head, rows.start : rows.start + len(sums)] += sums

    return *Gradients(tensors, scale, flipped=True).run(blocks, fill, take), d_table


def anti_diagonals(padded: Tensor) -> Tensor:
    """Sums over r + c = const of a matrix ``[…, n, m]`` with n columns of zeros behind it, ``[…, n + m − 1]``.

    With one element less per row, the rows are skewed: an anti-diagonal becomes a column.
    """
    n, wide = padded.shape[-2:]
    return padded.flatten(-2)[..., : n * (wide - 1)].unflatten(-1, (n, wide - 1)).sum(-2)
