"""A bias of the distance alone: a 1-D table, read by the kernel as a matrix that is never built.

    score[i, j] = q_i · k_j · scaling + t[i − j]

With the query rows in reverse order, entry (r, j) is u[r + j] for u the reversed table: a Hankel matrix, which is a
strided view of u with both strides 1. Causally, u is −∞ for the future, and blocks of rows stop at their last key. A
learned table gets its gradient by summing the score gradient along anti-diagonals, block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hf_posenc.attention import flash_cpu
from hf_posenc.attention.blocks import spread
from hf_posenc.attention.call import Call
from hf_posenc.heads import products
from hf_posenc.terms import ToeplitzBias

ROWS = 256  # of 128, 256, 512 the fastest at 2k and 8k


def accepts(call: Call) -> bool:
    """A full square, or a decoding row, on the CPU, with distance biases and nothing else."""
    terms = call.terms
    return (
        (call.triangle or (call.last_row and not torch.is_grad_enabled()))
        and len(terms.bias) > 0
        and all(isinstance(b, ToeplitzBias) for b in terms.bias)
        and terms.only("bias")
        and flash_cpu.usable(call.queries[0], call.keys[0], call.values)
    )


def attend(call: Call) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    query, key, value = call.queries[0], call.keys[0], call.values
    scale = call.scaling * call.terms.logit_scale
    if call.last_row and call.key_length > 1:
        row = table_of(call, torch.arange(call.key_length - 1, -1, -1, device=query.device))
        return flash_cpu.attend(query, key, value, causal=False, mask=row[None, :, None, :], scale=scale)[0]
    length = call.key_length
    table = table_of(call, torch.arange(length - 1, -length, -1, device=query.device))  # distance falls: u
    if table.requires_grad and torch.is_grad_enabled():
        return LearnedTable.apply(query, key, value, table, call.ctx.causal, scale)
    return _forward(query, key, value, table.detach(), call.ctx.causal, scale)[0]


def table_of(call: Call, distance: Tensor) -> Tensor:
    """All distance biases of a call at some distances, ``[heads, distance]``, float32."""
    total = sum(b.of_distance(distance).float() for b in call.terms.bias if isinstance(b, ToeplitzBias))
    return total * call.terms.logit_scale  # type: ignore[return-value]


def _forward(
    query: Tensor, key: Tensor, value: Tensor, table: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp. Without causality there is nothing to skip, and one call does it all."""
    parts = [
        flash_cpu.attend(
            query[:, :, start:end].flip(2), key[:, :, :seen], value[:, :, :seen], causal=False, mask=mask, scale=scale
        )
        for start, end, seen, mask in _blocks(table, causal, ROWS if causal else query.shape[2])
    ]
    return torch.cat([out.flip(2) for out, _ in parts], dim=2), torch.cat([lse.flip(2) for _, lse in parts], dim=2)


def _blocks(reversed_table: Tensor, causal: bool, rows: int) -> Iterator[tuple[int, int, int, Tensor]]:
    """Rows ``start … end``, the number of keys they see, and their mask ``[1, heads, rows reversed, keys]``, a view."""
    heads, width = reversed_table.shape
    length = (width + 1) // 2
    u = reversed_table.clone(memory_format=torch.contiguous_format)
    if causal:
        u[:, length:] = -torch.inf
    for start in range(0, length, rows):
        end = min(start + rows, length)
        seen = end if causal else length
        yield start, end, seen, u.as_strided((1, heads, end - start, seen), (heads * width, width, 1, 1), length - end)


class LearnedTable(torch.autograd.Function):
    """The same, with gradients for the table ``[heads, 2 · length − 1]``, largest distance first."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, table: Tensor, causal: bool, scale: float
    ) -> Tensor:
        """Mixed values; keeps what the backward pass reads."""
        out, lse = _forward(query, key, value, table.detach(), causal, scale)
        ctx.save_for_backward(query, key, value, table, out, lse)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the tensors that `forward` was given."""
        query, key, value, table, out, lse = ctx.saved_tensors
        length, scale = query.shape[2], ctx.scale
        d_query, d_key, d_value = (
            torch.empty_like(query),
            torch.zeros_like(key).float(),
            torch.zeros_like(value).float(),
        )
        d_table = torch.zeros_like(table, dtype=torch.float32)
        share = (grad.float() * out.float()).sum(-1)
        for start, end, seen, mask in _blocks(table.detach(), ctx.causal, ROWS):
            rows = slice(start, end)
            q, k, v = query[:, :, rows].flip(2).float(), key[:, :, :seen].float(), value[:, :, :seen].float()
            g = grad[:, :, rows].flip(2).float()
            weights = products(q, k).mul_(scale).add_(mask).sub_(lse[:, :, rows].flip(2)[..., None]).exp_()
            padded = weights.new_zeros(*weights.shape[:3], seen + end - start)
            d_scores = padded[..., :seen]
            torch.sub(products(g, v), share[:, :, rows].flip(2)[..., None], out=d_scores).mul_(weights)
            d_query[:, :, rows] = (spread(d_scores, k) * scale).flip(2).to(query.dtype)
            d_key[:, :, :seen] += gathered(d_scores, q, key.shape[1]) * scale
            d_value[:, :, :seen] += gathered(weights, g, key.shape[1])
            first = length - end
            d_table[:, first : first + end - start + seen - 1] += anti_diagonals(padded).sum(0)
        return d_query, d_key.to(key.dtype), d_value.to(value.dtype), d_table.to(table.dtype), None, None


def gathered(weights: Tensor, rows: Tensor, kv_heads: int) -> Tensor:
    """Σ_i w_ij x_i, summed over the query heads that share a key head: ``[batch, kv_heads, key, dim]``."""
    groups = weights.shape[1] // kv_heads
    weights, rows = weights.unflatten(1, (kv_heads, groups)), rows.unflatten(1, (kv_heads, groups))
    return weights.flatten(2, 3).transpose(-1, -2) @ rows.flatten(2, 3)


def anti_diagonals(padded: Tensor) -> Tensor:
    """Sums over r + c = const of a matrix ``[…, n, m]`` with n columns of zeros behind it, ``[…, n + m − 1]``.

    One element less a row, and the rows are sheared: what stood on an anti-diagonal stands in a column.
    """
    n, wide = padded.shape[-2:]
    return padded.flatten(-2)[..., : n * (wide - 1)].unflatten(-1, (n, wide - 1)).sum(-2)
