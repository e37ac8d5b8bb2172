"""Merge LSE partials: kernel calls on rectangles of query-key pairs, combined by log-sum-exp; no pair twice.

    o = Σ_p e^(lse_p − lse) o_p,   lse = log Σ_p e^lse_p

The gradient is exact when each part's own backward pass is given the merged output and log-sum-exp (the identity of
ring attention, arXiv:2310.01889).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_posenc.attention.kernels import by_device
from hf_posenc.attention.kernels.by_device import Added


@dataclass(frozen=True)
class Partial:
    """The queries and keys of one kernel call, whose output and log-sum-exp are merged with others.

    Attributes:
        region: whose queries and keys they are.
        rows: of the queries.
        keys: of the keys.
        causal: whether it is a square below its own diagonal.
        mask: added to the scores, float32 ``[1, 1, rows, keys]``, a window (see `kernels`), or None.
    """

    region: int
    rows: slice
    keys: slice
    causal: bool = False
    mask: Added = None


def attend(
    queries: Sequence[Tensor], keys: Sequence[Tensor], values: Tensor, parts: Sequence[Partial], scale: float
) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``; every row needs a part in which it sees a key.

    Args:
        queries: one a region, ``[batch, heads, query, head_dim]``.
        keys: one a region, ``[batch, kv_heads, key, head_dim]``.
        values: ``[batch, kv_heads, key, head_dim]``.
        parts: disjoint sets of pairs.
        scale: factor of q · k.
    """
    cuts = tuple((p.region, p.rows, p.keys, p.causal, p.mask) for p in parts)
    return merged(cuts, scale, len(queries), values, *queries, *keys)


@torch.compiler.allow_in_graph  # one operation to a compiler, which cannot read what is written in place
def merged(cuts: tuple[tuple, ...], scale: float, count: int, values: Tensor, *turned: Tensor) -> Tensor:
    """The same of the fields of parts: a graph holds no objects of ours."""
    return Merged.apply(tuple(Partial(*cut) for cut in cuts), scale, count, values, *turned)


def merge_into(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> None:
    """Add a part to ``out [batch, heads, rows, dim]`` and ``lse [batch, heads, rows]``, float32, in place."""
    # e^(more_lse − total), in a form that makes the merged output one interpolation: a single pass over it.
    out.lerp_(more.float(), (more_lse - lse).sigmoid_()[..., None])
    torch.logaddexp(lse, more_lse, out=lse)


class PartialSum:
    """Running merge of partials; queries that no partial has reached yet are simply set."""

    def __init__(self, like: Tensor) -> None:
        batch, heads, rows, dim = like.shape
        # The kernel's own order in memory: a merge runs straight through it, and so does whoever joins the heads.
        self.out = like.new_empty(batch, rows, heads, dim, dtype=torch.float32).transpose(1, 2)
        self.lse = like.new_empty(batch, rows, heads, dtype=torch.float32).transpose(1, 2)
        self.reached = bytearray(rows)

    def add(self, rows: slice, more: Tensor, more_lse: Tensor) -> None:
        """Add a part's output ``[batch, heads, rows, dim]`` and log-sum-exp ``[batch, heads, rows]``."""
        reached, out, lse = self.reached[rows], self.out[:, :, rows], self.lse[:, :, rows]
        if any(reached):
            if not all(reached):
                unset = torch.tensor([not one for one in reached], device=lse.device)
                out[:, :, unset], lse[:, :, unset] = 0.0, -torch.inf
            merge_into(out, lse, more, more_lse)
        else:
            out.copy_(more)
            lse.copy_(more_lse)
        self.reached[rows] = b"\1" * len(reached)


class Merged(torch.autograd.Function):
    """Forward merges the parts, backward runs each part's own backward with the merged result."""

    @staticmethod
    def forward(
        ctx: Any, parts: tuple[Partial, ...], scale: float, count: int, values: Tensor, *turned: Tensor
    ) -> Tensor:
        """Mixed values; keeps what the backward pass reads. ``turned`` are queries and keys of ``count`` regions."""
        queries, keys = turned[:count], turned[count:]
        first = queries[0]
        total = PartialSum(first)
        for p in parts:
            more, more_lse = by_device.attend(
                queries[p.region][:, :, p.rows], keys[p.region][:, :, p.keys], values[:, :, p.keys],
                causal=p.causal, mask=p.mask, scale=scale,
            )  # fmt: skip
            total.add(p.rows, more, more_lse)
        out, lse = total.out.to(first.dtype), total.lse
        ctx.save_for_backward(values, out, lse, *turned)
        ctx.parts, ctx.scale, ctx.count = parts, scale, count
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the tensors that `forward` was given."""
        values, out, lse, *turned = ctx.saved_tensors
        count = ctx.count
        d_values, *d_turned = (torch.zeros_like(t) for t in (values, *turned))
        for p in ctx.parts:
            rows, seen = p.rows, p.keys
            dq, dk, dv = by_device.gradient(
                grad[:, :, rows], turned[p.region][:, :, rows], turned[count + p.region][:, :, seen],
                values[:, :, seen], out[:, :, rows], lse[:, :, rows], causal=p.causal, mask=p.mask, scale=ctx.scale,
            )  # fmt: skip
            d_turned[p.region][:, :, rows] += dq
            d_turned[count + p.region][:, :, seen] += dk
            d_values[:, :, seen] += dv
        return None, None, None, d_values, *d_turned
