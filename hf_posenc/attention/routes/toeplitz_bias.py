"""A bias of the distance alone: a 1-D table, passed to the kernel as a strided view, never as a matrix.

    score[i, j] = q_i · k_j · scaling + t[i − j]        of pairs within a window, or of all

A learned table gets its gradient by summing the score gradient along anti-diagonals, block by block.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall, unseen_ahead
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.merge import merge_into
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes.bias_gradient import ROWS as LEARNED_ROWS
from hf_posenc.attention.routes.bias_gradient import gradients
from hf_posenc.attention.routes.hankel_view import Hankel
from hf_posenc.core.regions import EVERYTHING, Band
from hf_posenc.core.terms import Bias, KeyBias, ToeplitzBias


def accepts(call: AttentionCall) -> bool:
    """Prefill on the CPU, with or without a cache, with distance biases, maybe a window, and no other terms."""
    terms = call.terms
    return (
        len(terms.bias) > 0
        and call.is_unmasked_suffix
        and all(is_of_distance(bias, terms.visible) for bias in terms.bias)
        and (terms.visible == EVERYTHING or is_window(terms.visible))
        and terms.only("bias", "visible")
        and flash_cpu.usable(call.queries[0], call.keys[0], call.values)
    )


def is_of_distance(bias: Bias, visible: Band) -> bool:
    """Whether a bias depends on the distance alone; of all keys, a linear one is cheaper as a bias of the key."""
    return isinstance(bias, ToeplitzBias) or (
        isinstance(bias, KeyBias) and bias.slopes is not None and visible != EVERYTHING
    )


def is_window(band: Band) -> bool:
    """Whether a band is one of distances, which has distance 0 in it, so that no query is without a key."""
    own = (band.nearest is None or band.nearest <= 0) and (band.farthest is None or band.farthest > 0)
    return own and band == Band(band.nearest, band.farthest)


def attend(call: AttentionCall) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    query, key, value = call.queries[0], call.keys[0], call.values
    scale = call.scale
    length = call.key_length
    farthest_ahead = call.query_length - 1  # distance of query 0 to the last key

    def table() -> Tensor:
        distance = torch.arange(length - 1, -farthest_ahead - 1, -1, device=query.device)  # it falls: u
        return table_of(call, distance)

    band = unseen_ahead(call.terms.visible, call.ctx.causal)
    if torch.is_grad_enabled():
        return Tabled.apply(query, key, value, table(), band, scale)
    # Layers whose biases are the same method of a scheme share its table; others, and slopes, have one per layer.
    functions = tuple(b.of_distance if isinstance(b, ToeplitzBias) else None for b in call.terms.bias)
    use = ("table", functions, call.query_length, length, call.terms.logit_scale)
    kept = call.ctx.once(use, table) if all(isinstance(f, MethodType) for f in functions) else table()
    if call.query_length == 1 and call.ctx.causal and band.farthest is None:
        return flash_cpu.attend(query, key, value, causal=False, mask=kept[None, :, None, :], scale=scale)[0]
    return _forward(query, key, value, kept, band, scale)[0]


def table_of(call: AttentionCall, distance: Tensor) -> Tensor:
    """All distance biases of a call at some distances, ``[heads, distance]``, float32."""
    total = sum(_values(bias, distance) for bias in call.terms.bias)
    return total * call.terms.logit_scale  # type: ignore[return-value]


def _values(bias: Bias, distance: Tensor) -> Tensor:
    if isinstance(bias, ToeplitzBias):
        return bias.of_distance(distance).float()
    assert isinstance(bias, KeyBias)
    assert bias.slopes is not None
    return -bias.slopes.float()[:, None] * distance


def _forward(
    query: Tensor, key: Tensor, value: Tensor, table: Tensor, band: Band, scale: float
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    hankel = Hankel.of(table, query.shape[2], key.shape[2], band)
    out, lse = torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)
    for block, rectangles in hankel.blocks():
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
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, table: Tensor, band: Band, scale: float) -> Tensor:
        """Mixed values; saves the tensors of the backward pass."""
        out, lse = _forward(query, key, value, table, band, scale)
        ctx.save_for_backward(query, key, value, table, out, lse)
        ctx.band, ctx.scale = band, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the tensors that `forward` was given."""
        query, key, value, table, out, lse = ctx.saved_tensors
        hankel = Hankel.of(table, query.shape[2], key.shape[2], ctx.band)
        tensors = (query, key, value, out, lse, grad)
        if ctx.needs_input_grad[3]:
            return *_with_table(hankel, tensors, ctx.scale), None, None
        return *_by_kernel(hankel, tensors, ctx.scale), None, None, None


def _by_kernel(hankel: Hankel, tensors: tuple[Tensor, ...], scale: float) -> tuple[Tensor, ...]:
    """Gradients of query, key and value under a fixed table."""
    query, key, value, out, lse, grad = tensors
    d_query, d_key, d_value = (torch.zeros_like(t, dtype=torch.float32) for t in (query, key, value))
    for _, rectangles in hankel.blocks():
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


def _with_table(hankel: Hankel, tensors: tuple[Tensor, ...], scale: float) -> tuple[Tensor, ...]:
    """Gradients of query, key, value and table."""
    queries, d_table = hankel.queries, torch.zeros_like(hankel.table)
    blocks = []  # of reversed rows, counted from the last one
    for start in range(0, queries, LEARNED_ROWS):
        end = min(start + LEARNED_ROWS, queries)
        blocks.append((slice(queries - end, queries - start), hankel.seen(slice(start, end))))

    def fill(sample: int, head: int, rows: slice, seen: slice, bias: Tensor) -> None:
        there = slice(queries - rows.stop, queries - rows.start)
        bias.copy_(hankel.mask(there, seen)[0, head])

    def take(sample: int, head: int, rows: slice, seen: slice, padded: Tensor) -> None:
        sums = anti_diagonals(padded)
        first = rows.start + seen.start
        d_table[head, first : first + len(sums)] += sums

    return *gradients(tensors, scale, blocks, fill, take, flipped=True), d_table


def anti_diagonals(padded: Tensor) -> Tensor:
    """Sums over r + c = const of a matrix ``[…, n, m]`` with n columns of zeros behind it, ``[…, n + m − 1]``.

    With one element less per row, the rows are skewed: an anti-diagonal becomes a column.
    """
    n, wide = padded.shape[-2:]
    return padded.flatten(-2)[..., : n * (wide - 1)].unflatten(-1, (n, wide - 1)).sum(-2)


ROUTE = Route("toeplitz_bias", accepts, attend)
