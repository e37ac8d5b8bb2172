"""Backward pass of a trained bias: its gradient equals that of the scores, which no kernel returns.

    w = exp(q · k · scale + bias − lse)        d_scores = w (g · v − Σ g · o) = d_bias

It is computed for one head and one block of queries at a time, in reused buffers that stay in the processor's cache.
This makes it about as fast as the kernel's own backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

ROWS = 128  # of 64, 128, 256 the fastest
LOWEST_EXPONENT = -80.0  # weights below 2e-35 become 0, because underflow makes the exponential ten times slower

BlockFunction = Callable[[int, int, slice, slice, Tensor], object]  # of sample, head, rows, keys and a tensor


def gradients(
    tensors: tuple[Tensor, ...],
    scale: float,
    blocks: list[tuple[slice, slice]],
    write_bias: BlockFunction,
    add_gradient: BlockFunction,
    *,
    flipped: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value of one call, gathered block by block.

    Args:
        tensors: query, key, value, output, log-sum-exp and gradient of the output; the second axis is the heads.
        scale: factor of q · k.
        blocks: queries and their visible keys; every query is in one block.
        write_bias: writes the bias of a block into a tensor ``[rows, keys]``, −∞ at masked pairs.
        add_gradient: receives the gradient of that bias ``[rows, keys + rows]``, whose last columns are zeros.
        flipped: whether queries are numbered from the last to the first.
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
        row_tensors = (query[b, h].float() * scale, grad[b, h].float(), lse[b, h], share[b, h])
        q_all, g_all, lse_all, share_all = ((t.flip(0) if flipped else t).contiguous() for t in row_tensors)
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
        d_q.mul_(scale)
        d_query[b, h] = d_q.flip(0) if flipped else d_q
    return d_query, d_key.to(key.dtype), d_value.to(value.dtype)
