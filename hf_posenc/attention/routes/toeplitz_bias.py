"""A bias that depends on distance alone: a 1-D table, passed to the kernel as a strided view, never as a matrix.

    score[i, j] = q_i · k_j · scaling + t[i − j]        for pairs within a window, or for all pairs

A learned table gets its gradient by summing the score gradient along anti-diagonals, block by block.
"""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall, causal_band
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.merge import merge_into
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes.band_cuts import is_window
from hf_posenc.attention.routes.bias_gradient import ROWS as LEARNED_ROWS
from hf_posenc.attention.routes.bias_gradient import gradients
from hf_posenc.attention.routes.hankel_view import Hankel
from hf_posenc.core.regions import EVERYTHING, Band
from hf_posenc.core.terms import Bias, KeyBias, ToeplitzBias


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


def attend(call: AttentionCall) -> Tensor:
    """Attention output ``[batch, heads, query, value_dim]``."""
    query, key, value, scale = call.queries[0], call.keys[0], call.values, call.scale
    band = causal_band(call.terms.visible, call.ctx.causal)
    if torch.is_grad_enabled():
        return TableAttention.apply(query, key, value, table_of(call), band, scale)
    # Layers share a table if their biases are the same method of one scheme. Others, and slopes, have one per layer.
    functions = tuple(b.of_distance if isinstance(b, ToeplitzBias) else None for b in call.terms.bias)
    use = ("table", functions, call.query_length, call.key_length, call.terms.logit_scale)
    shared = all(isinstance(function, MethodType) for function in functions)
    biases = call.ctx.once(use, partial(table_of, call)) if shared else table_of(call)
    if call.query_length == 1 and call.ctx.causal and band.farthest is None:
        return flash_cpu.attend(query, key, value, causal=False, mask=biases[None, :, None, :], scale=scale)[0]
    return _forward(query, key, value, biases, band, scale)[0]


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


def _forward(
    query: Tensor, key: Tensor, value: Tensor, table: Tensor, band: Band, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention output and log-sum-exp."""
    hankel = Hankel.of(table, query.shape[2], key.shape[2], band)
    out, lse = torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)
    for block, rectangles in hankel.blocks():
        merging = rectangles[-1][1].start < rectangles[0][1].start
        # Parts are merged in float32; in place if the output is float32.
        merged = out[:, :, block].float() if merging else out[:, :, block]
        for rows, seen in rectangles:
            part, part_lse = flash_cpu.attend(
                query[:, :, rows].flip(2), key[:, :, seen], value[:, :, seen],
                causal=False, mask=hankel.mask(rows, seen), scale=scale,
            )  # fmt: skip
            part, part_lse = part.flip(2), part_lse.flip(2)
            if seen.start < rectangles[0][1].start:
                merge_into(merged, lse[:, :, rows], part, part_lse)
            else:
                merged[:, :, rows.start - block.start : rows.stop - block.start], lse[:, :, rows] = part, part_lse
        if merged.dtype != out.dtype:
            out[:, :, block] = merged
    return out, lse


class TableAttention(torch.autograd.Function):
    """`attend` with gradients, also of the table ``[heads, queries + keys − 1]``, largest distance first."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, table: Tensor, band: Band, scale: float) -> Tensor:
        """Attention output; saves the tensors of the backward pass."""
        out, lse = _forward(query, key, value, table, band, scale)
        ctx.save_for_backward(query, key, value, table, out, lse)
        ctx.band, ctx.scale = band, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the tensor arguments of `forward`."""
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
            d_out, q, o, row_lse = (t[:, :, rows].flip(2) for t in (grad, query, out, lse))
            dq, dk, dv = flash_cpu.gradient(
                d_out, q, key[:, :, seen], value[:, :, seen], o, row_lse,
                causal=False, mask=hankel.mask(rows, seen), scale=scale,
            )  # fmt: skip
            d_query[:, :, rows] += dq.flip(2)
            d_key[:, :, seen] += dk
            d_value[:, :, seen] += dv
    return tuple(d.to(t.dtype) for d, t in zip((d_query, d_key, d_value), (query, key, value), strict=True))


def _with_table(hankel: Hankel, tensors: tuple[Tensor, ...], scale: float) -> tuple[Tensor, ...]:
    """Gradients of query, key, value and table."""
    queries, d_table = hankel.queries, torch.zeros_like(hankel.table)
    blocks = []  # of rows that are counted from the last one
    for start in range(0, queries, LEARNED_ROWS):
        end = min(start + LEARNED_ROWS, queries)
        blocks.append((slice(queries - end, queries - start), hankel.seen(slice(start, end))))

    def write_bias(sample: int, head: int, rows: slice, seen: slice, bias: Tensor) -> None:
        in_order = slice(queries - rows.stop, queries - rows.start)
        bias.copy_(hankel.mask(in_order, seen)[0, head])

    def add_gradient(sample: int, head: int, rows: slice, seen: slice, padded: Tensor) -> None:
        sums = anti_diagonals(padded)
        first = rows.start + seen.start
        d_table[head, first : first + len(sums)] += sums

    return *gradients(tensors, scale, blocks, write_bias, add_gradient, flipped=True), d_table


def anti_diagonals(padded: Tensor) -> Tensor:
    """Sums over r + c = const of a matrix ``[…, n, m]`` that is followed by n columns of zeros, ``[…, n + m − 1]``.

    Read with rows that are one element shorter, the matrix is skewed: an anti-diagonal becomes a column.
    """
    n, columns = padded.shape[-2:]
    return padded.flatten(-2)[..., : n * (columns - 1)].unflatten(-1, (n, columns - 1)).sum(-2)


ROUTE = Route("toeplitz_bias", accepts, lambda call: attend)
