"""Combine partial attention outputs of disjoint sets of query-key pairs by their log-sum-exps (LSE).

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
from hf_posenc.attention.kernels.by_device import MaskOrWindow


@dataclass(frozen=True)
class PartialAttention:
    """The queries and keys of one kernel call, whose output and log-sum-exp are merged with others.

    Attributes:
        region: number of the region.
        rows: slice of the queries.
        keys: slice of the keys.
        causal: whether the pairs are a causal square.
        mask: float32 ``[1, 1, rows, keys]``, added to the scores; or a window (see `by_device.MaskOrWindow`); or None.
        offset: constant per query that the mask omits, added to the log-sum-exp, float32 ``[batch or 1, heads, rows]``;
            or None.
        flipped: whether the mask is for the queries in reverse order.
    """

    region: int
    rows: slice
    keys: slice
    causal: bool = False
    mask: MaskOrWindow = None
    offset: Tensor | None = None
    flipped: bool = False

    def ordered(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Tensors of the queries ``[batch, heads, rows, …]`` from their own order to that of the mask, or back."""
        return tuple(tensor.flip(2) for tensor in tensors) if self.flipped else tensors


def attend(partials: Sequence[PartialAttention], call: AttentionCall) -> Tensor:
    """Attention output ``[batch, heads, query, value_dim]`` of a call that is cut into disjoint sets of pairs.

    Every query must have a visible key in some partial.
    """
    cuts = tuple((p.region, p.rows, p.keys, p.causal, p.mask, p.offset, p.flipped) for p in partials)
    return merged(cuts, call.scale, len(call.queries), call.terms.sink, call.values, *call.queries, *call.keys)


@torch.compiler.allow_in_graph  # one operation to a compiler, which does not support its in-place writes
def merged(
    cuts: tuple[tuple, ...], scale: float, count: int, sink: Tensor | None, values: Tensor, *rotated: Tensor
) -> Tensor:
    """`attend` for plain tuples and tensors, because a compiled graph accepts no custom objects."""
    return MergedAttention.apply(tuple(PartialAttention(*cut) for cut in cuts), scale, count, sink, values, *rotated)


def merge_into(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merge a partial into ``out [batch, heads, rows, dim]`` and ``lse [batch, heads, rows]``, float32, in place."""
    # e^(more_lse − total), in a form that makes the merged output one interpolation: a single pass over it.
    out.lerp_(part.float(), (part_lse - lse).sigmoid_()[..., None])
    torch.logaddexp(lse, part_lse, out=lse)


def with_sink(out: Tensor, lse: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """Merge a sink ``[heads]`` into ``out [batch, heads, rows, dim]`` and ``lse [batch, heads, rows]``."""
    logit = sink.float()[None, :, None]
    return out * (lse - logit).sigmoid()[..., None], torch.logaddexp(lse, logit)


class PartialSum:
    """Running merge of partials; the first partial of a query is copied. ``dtype`` is float32 if any are merged."""

    def __init__(self, like: Tensor, dtype: torch.dtype = torch.float32) -> None:
        batch, heads, rows, dim = like.shape
        # The kernel's memory layout: merging and joining the heads then read contiguous memory.
        self.out = like.new_empty(batch, rows, heads, dim, dtype=dtype).transpose(1, 2)
        self.lse = like.new_empty(batch, rows, heads, dtype=torch.float32).transpose(1, 2)
        self.reached = bytearray(rows)

    def add(self, rows: slice, part: Tensor, part_lse: Tensor) -> None:
        """Merge a partial output ``[batch, heads, rows, dim]`` and its log-sum-exp ``[batch, heads, rows]``."""
        reached, out, lse = self.reached[rows], self.out[:, :, rows], self.lse[:, :, rows]
        if all(reached):
            merge_into(out, lse, part, part_lse)
        elif any(reached):
            unset = torch.tensor([not flag for flag in reached], device=lse.device)
            out[:, :, unset], lse[:, :, unset] = 0.0, -torch.inf
            merge_into(out, lse, part, part_lse)
        elif len(reached) == len(self.reached):
            self.out, self.lse = part.to(self.out.dtype), part_lse
        else:
            out.copy_(part)
            lse.copy_(part_lse)
        self.reached[rows] = b"\1" * len(reached)


def merge_partials(
    partials: Iterable[PartialAttention],
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    values: Tensor,
    scale: float,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the partials and merge them: output, in the dtype of the queries, and log-sum-exp.

    Args:
        partials: disjoint sets of pairs.
        queries: one per region, ``[batch, heads, query, head_dim]``.
        keys: one per region, ``[batch, kv_heads, key, head_dim]``.
        values: ``[batch, kv_heads, key, head_dim]``.
        scale: factor of q · k.
        sink: logit of one extra key without a value, ``[heads]``.
    """
    kernel, cuts = by_device.kernel_of(values), list(partials)
    # Whether the partials follow one another, so that every query is in one of them.
    is_sequence = [0, *(cut.rows.stop for cut in cuts)] == [*(cut.rows.start for cut in cuts), queries[0].shape[2]]
    total = PartialSum(queries[0], queries[0].dtype if is_sequence else torch.float32)
    for cut in cuts:
        (query,) = cut.ordered(queries[cut.region][:, :, cut.rows])
        part, part_lse = cut.ordered(*kernel.attend(
            query, keys[cut.region][:, :, cut.keys], values[:, :, cut.keys],
            causal=cut.causal, mask=cut.mask, scale=scale,
        ))  # fmt: skip
        total.add(cut.rows, part, part_lse if cut.offset is None else part_lse + cut.offset)
    out, lse = (total.out, total.lse) if sink is None else with_sink(total.out, total.lse, sink)
    return out.to(queries[0].dtype), lse


class MergedAttention(torch.autograd.Function):
    """Merge partials. The backward pass runs each partial with the merged output and log-sum-exp."""

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
        """Attention output; saves tensors for backward. ``rotated``: queries, then keys, of ``count`` regions."""
        out, lse = merge_partials(partials, rotated[:count], rotated[count:], values, scale, sink)
        ctx.save_for_backward(sink, values, out, lse, *rotated)
        ctx.partials, ctx.scale, ctx.count = partials, scale, count
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the tensor arguments of `forward`."""
        sink, values, out, lse, *rotated = ctx.saved_tensors
        count = ctx.count
        kernel = by_device.kernel_of(values)
        d_values, *d_rotated = (torch.zeros_like(t) for t in (values, *rotated))
        for cut in ctx.partials:
            rows, seen = cut.rows, cut.keys
            part_lse = lse[:, :, rows] if cut.offset is None else lse[:, :, rows] - cut.offset
            d_out, query, own_out, part_lse = cut.ordered(
                grad[:, :, rows], rotated[cut.region][:, :, rows], out[:, :, rows], part_lse
            )
            dq, dk, dv = kernel.gradient(
                d_out, query, rotated[count + cut.region][:, :, seen], values[:, :, seen], own_out, part_lse,
                causal=cut.causal, mask=cut.mask, scale=ctx.scale,
            )  # fmt: skip
            d_rotated[cut.region][:, :, rows] += cut.ordered(dq)[0]
            d_rotated[count + cut.region][:, :, seen] += dk
            d_values[:, :, seen] += dv
        return None, None, None, gradient_of_sink(sink, out, lse, grad), d_values, *d_rotated


def gradient_of_sink(sink: Tensor | None, out: Tensor, lse: Tensor, grad: Tensor) -> Tensor | None:
    """Gradient of a sink's logit: its weight times −o · ∂o, summed over the queries, because it has no value."""
    if sink is None:
        return None
    weight = (sink.float()[None, :, None] - lse).exp()
    return -(weight * (out.float() * grad.float()).sum(-1)).sum((0, 2)).to(sink.dtype)
