"""Attention with a trained bias, whose gradient equals that of the scores, which no kernel returns.

    w = exp(q · k · scale + bias − lse)        d_scores = w (g · v − Σ g · o) = d_bias

The backward pass computes one head and one block of queries at a time, in reused buffers that stay in the processor's
cache. This makes it about as fast as the kernel's own backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor

from hf_posenc.attention.merge import PartialAttention, merge_partials

ROWS = 128  # of 64, 128, 256 the fastest
LOWEST_EXPONENT = -80.0  # weights below 2e-35 become 0, because underflow makes the exponential ten times slower

BlockFunction = Callable[[int, int, slice, slice, Tensor], object]  # of sample, head, rows, keys and a tensor
Gradients = tuple[Tensor, Tensor, Tensor, Tensor]


class LearnedBias(torch.autograd.Function):
    """Attention with gradients, also of the tensor that defines the bias."""

    @staticmethod
    def forward(
        ctx: Any,
        partials: Callable[[Tensor], Iterator[PartialAttention]],
        gradients_of: Callable[[tuple[Tensor, ...], Tensor, float], Gradients],
        scale: float,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
    ) -> Tensor:
        """Attention output; saves the tensors of the backward pass.

        Args:
            ctx: of autograd.
            partials: cuts the call with this bias for the kernel.
            gradients_of: function of the first argument of `gradients`, the bias and the scale: gradients of query,
                key, value and bias.
            scale: factor of q · k.
            query: ``[batch, heads, query, head_dim]``, like ``key`` and ``value``.
            bias: any tensor.
        """
        out, lse = merge_partials(partials(bias), (query,), (key,), value, scale)
        ctx.save_for_backward(query, key, value, out, lse, bias)
        ctx.gradients_of, ctx.scale = gradients_of, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the tensor arguments of `forward`."""
        *tensors, bias = ctx.saved_tensors
        return None, None, None, *ctx.gradients_of((*tensors, grad), bias, ctx.scale)


def gradients(
    tensors: tuple[Tensor, ...],
    scale: float,
    blocks: list[tuple[slice, slice]],
    write_bias: BlockFunction,
    add_gradient: BlockFunction,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value of one call, gathered block by block.

    Args:
        tensors: query, key, value, output, log-sum-exp and gradient of the output; the second axis is the heads.
        scale: factor of q · k.
        blocks: queries and their visible keys; every query is in one block.
        write_bias: writes the bias of a block into a tensor ``[rows, keys]``, −∞ at masked pairs.
        add_gradient: receives the gradient of that bias ``[rows, keys + rows]``, whose last columns are zeros.
    """
    query, key, value, out, lse, grad = tensors
    share = (grad.float() * out.float()).sum(-1)
    d_query = torch.empty_like(query)
    d_key, d_value = (torch.zeros_like(t, dtype=torch.float32) for t in (key, value))
    sizes = [(rows.stop - rows.start, keys.stop - keys.start) for rows, keys in blocks]
    weights, scores = lse.new_empty(max(n * m for n, m in sizes)), lse.new_empty(max(n * (m + n) for n, m in sizes))
    groups = query.shape[1] // key.shape[1]
    for b, h in product(range(query.shape[0]), range(query.shape[1])):
        shared = b, h // groups
        k_all, v_all = key[shared].float().contiguous(), value[shared].float().contiguous()
        q_all, g_all = query[b, h].float().mul(scale).contiguous(), grad[b, h].float().contiguous()
        lse_all, share_all = lse[b, h].contiguous(), share[b, h].contiguous()
        d_q = torch.empty_like(q_all)
        for (rows, keys), (n, m) in zip(blocks, sizes, strict=True):
            w, padded = weights[: n * m].view(n, m), scores[: n * (m + n)].view(n, m + n)
            k, q, g = k_all[keys], q_all[rows], g_all[rows]
            write_bias(b, h, rows, keys, w)
            torch.threshold_(w.sub_(lse_all[rows, None]).addmm_(q, k.T), LOWEST_EXPONENT, -torch.inf).exp_()
            padded[:, m:] = 0
            d_scores = padded[:, :m]  # a graph cannot write into a view with out=
            d_scores.addmm_(g, v_all[keys].T, beta=0).sub_(share_all[rows, None]).mul_(w)
            torch.mm(d_scores, k, out=d_q[rows])
            d_key[shared][keys].addmm_(d_scores.T, q)
            d_value[shared][keys].addmm_(w.T, g)
            add_gradient(b, h, rows, keys, padded)
        d_query[b, h] = d_q.mul_(scale)
    return d_query, d_key.to(key.dtype), d_value.to(value.dtype)


def pieces(start: int, stop: int, size: int) -> Iterator[slice]:
    """Consecutive slices of ``size``, the last of which may be shorter."""
    for first, end in pairwise([*range(start, stop, size), stop]):
        yield slice(first, end)
