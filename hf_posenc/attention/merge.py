"""Merge LSE partials: kernel calls on rectangles of query-key pairs, combined by log-sum-exp; pairs are disjoint.

    o = Σ_p e^(lse_p − lse) o_p,   lse = log(Σ_p e^lse_p + e^sink)

A sink is a logit without keys: one more partial, whose output is zero.
The gradient is exact when the backward pass of each partial is given the merged output and log-sum-exp (the identity of
ring attention, arXiv:2310.01889).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import by_device
from hf_posenc.attention.kernels.by_device import Added


@dataclass(frozen=True)
class PartialAttention:
    """The queries and keys of one kernel call, whose output and log-sum-exp are merged with others.

    Attributes:
        region: number of the region.
        rows: its queries.
        keys: its keys.
        causal: whether it is a square below its own diagonal.
        mask: added to the scores, float32 ``[1, 1, rows, keys]``, a window (see `by_device.Added`), or None.
        offset: constant of each query that the mask leaves out, float32 ``[batch or 1, heads, rows]``, or None.
    """

    region: int
    rows: slice
    keys: slice
    causal: bool = False
    mask: Added = None
    offset: Tensor | None = None


def attend(partials: Sequence[PartialAttention], call: AttentionCall) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]`` of a call, cut into disjoint sets of pairs.

    Every query needs a partial with a visible key.
    """
    cuts = tuple((p.region, p.rows, p.keys, p.causal, p.mask, p.offset) for p in partials)
    return merged(cuts, call.scale, len(call.queries), call.terms.sink, call.values, *call.queries, *call.keys)


@torch.compiler.allow_in_graph  # one operation to a compiler, which does not support its in-place writes
def merged(
    cuts: tuple[tuple, ...], scale: float, count: int, sink: Tensor | None, values: Tensor, *rotated: Tensor
) -> Tensor:
    """The same from the fields of the partials, as a graph takes no custom objects."""
    return MergedAttention.apply(tuple(PartialAttention(*cut) for cut in cuts), scale, count, sink, values, *rotated)


def merge_into(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> None:
    """Add a partial to ``out [batch, heads, rows, dim]`` and ``lse [batch, heads, rows]``, float32, in place."""
    # e^(more_lse − total), in a form that makes the merged output one interpolation: a single pass over it.
    out.lerp_(more.float(), (more_lse - lse).sigmoid_()[..., None])
    torch.logaddexp(lse, more_lse, out=lse)


def with_sink(out: Tensor, lse: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """Output ``[batch, heads, rows, dim]`` and log-sum-exp ``[batch, heads, rows]`` with a sink ``[heads]`` as well."""
    logit = sink.float()[None, :, None]
    return out * (lse - logit).sigmoid()[..., None], torch.logaddexp(lse, logit)


class PartialSum:
    """Running merge of partials; the first partial of a query is copied."""

    def __init__(self, like: Tensor) -> None:
        batch, heads, rows, dim = like.shape
        # The kernel's memory layout: merging and joining the heads then read contiguous memory.
        self.out = like.new_empty(batch, rows, heads, dim, dtype=torch.float32).transpose(1, 2)
        self.lse = like.new_empty(batch, rows, heads, dtype=torch.float32).transpose(1, 2)
        self.reached = bytearray(rows)

    def add(self, rows: slice, more: Tensor, more_lse: Tensor) -> None:
        """Add the output of a partial, ``[batch, heads, rows, dim]`` and log-sum-exp ``[batch, heads, rows]``."""
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


def mixed(
    partials: Iterable[PartialAttention],
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    values: Tensor,
    scale: float,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Merged output, in the dtype of the queries, and log-sum-exp.

    Args:
        partials: disjoint sets of pairs.
        queries: one per region, ``[batch, heads, query, head_dim]``.
        keys: one per region, ``[batch, kv_heads, key, head_dim]``.
        values: ``[batch, kv_heads, key, head_dim]``.
        scale: factor of q · k.
        sink: logit of one more key that has no value, ``[heads]``.
    """
    kernel, total = by_device.of(values), PartialSum(queries[0])
    for p in partials:
        more, more_lse = kernel.attend(
            queries[p.region][:, :, p.rows], keys[p.region][:, :, p.keys], values[:, :, p.keys],
            causal=p.causal, mask=p.mask, scale=scale,
        )  # fmt: skip
        total.add(p.rows, more, more_lse if p.offset is None else more_lse + p.offset)
    out, lse = (total.out, total.lse) if sink is None else with_sink(total.out, total.lse, sink)
    return out.to(queries[0].dtype), lse


class MergedAttention(torch.autograd.Function):
    """Merge partials; the backward pass runs that of each partial with the merged result."""

    @staticmethod
    def forward(
        ctx: Any,
        partials: tuple[PartialAttention, ...],
        scale: float,
        count: int,
        sink: Tensor | None,
        values: Tensor,
        *rotated: Tensor,
    ) -> Tensor:
        """Mixed values; saves tensors for backward. ``rotated`` are queries and keys of ``count`` regions."""
        out, lse = mixed(partials, rotated[:count], rotated[count:], values, scale, sink)
        ctx.save_for_backward(sink, values, out, lse, *rotated)
        ctx.partials, ctx.scale, ctx.count = partials, scale, count
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the tensors that `forward` was given."""
        sink, values, out, lse, *rotated = ctx.saved_tensors
        count = ctx.count
        kernel = by_device.of(values)
        d_values, *d_rotated = (torch.zeros_like(t) for t in (values, *rotated))
        for p in ctx.partials:
            rows, seen = p.rows, p.keys
            of_mask = lse[:, :, rows] if p.offset is None else lse[:, :, rows] - p.offset
            dq, dk, dv = kernel.gradient(
                grad[:, :, rows], rotated[p.region][:, :, rows], rotated[count + p.region][:, :, seen],
                values[:, :, seen], out[:, :, rows], of_mask, causal=p.causal, mask=p.mask, scale=ctx.scale,
            )  # fmt: skip
            d_rotated[p.region][:, :, rows] += dq
            d_rotated[count + p.region][:, :, seen] += dk
            d_values[:, :, seen] += dv
        return None, None, None, gradient_of_sink(sink, out, lse, grad), d_values, *d_rotated


def gradient_of_sink(sink: Tensor | None, out: Tensor, lse: Tensor, grad: Tensor) -> Tensor | None:
    """Gradient of a sink's logit: its weight times −o · ∂o, as it has no value, summed over the queries."""
    if sink is None:
        return None
    weight = (sink.float()[None, :, None] - lse).exp()
    return -(weight * (out.float() * grad.float()).sum(-1)).sum((0, 2)).to(sink.dtype)
