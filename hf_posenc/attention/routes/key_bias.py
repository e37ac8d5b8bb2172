"""Bias of the key alone, in kernel calls whose float32 masks are small wherever a weight is large.

    score[i, j] = q_i · k_j · scaling + c_j − c_i

The kernel adds the mask in float32, so a mask far from zero costs the scores their last digits. Of keys before a block
of queries it is one stride-0 row, c_j − c_s with s the first query of the block: what the row leaves out, c_s − c_i, is
added to the log-sum-exp, and only where it is small do these keys have weight. Of the keys of the block itself it is
c_j − c_i for every pair. No constant depends on later tokens, so rounding does not either. The mask is float32 for
queries of any dtype: bfloat16 would round its differences away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from hf_posenc.attention import merge
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.merge import PartialAttention
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes.bias_gradient import ROWS as LEARNED_ROWS
from hf_posenc.attention.routes.bias_gradient import gradients
from hf_posenc.core.grouped_heads import packed_mask
from hf_posenc.core.terms import KeyBias
from hf_posenc.core.tracing import is_traced

OUTER = 1024  # queries that read the keys before them in one call: fewer, larger calls
INNER = 64  # queries whose own keys have a mask of pairs


def accepts(call: AttentionCall) -> bool:
    """Causal prefill or decoding on the CPU, with or without a cache, with key biases and no other terms."""
    terms = call.terms
    return (
        len(terms.bias) > 0
        and call.is_unmasked_suffix
        and call.ctx.causal
        and all(isinstance(b, KeyBias) for b in terms.bias)
        and terms.only("bias")
        and flash_cpu.usable(call.queries[0], call.keys[0], call.values)
    )


def prepare(call: AttentionCall) -> Callable[[AttentionCall], Tensor]:
    """The function that computes calls with these biases; a decode query's mask is made here, once for all layers."""
    if call.query_length == 1 and not torch.is_grad_enabled() and not is_traced():
        mask = packed_mask(counted_from(_values(call), slice(-1, None)), call.queries[0], call.keys[0].shape[1])
        return partial(_decode, mask)
    values = _values(call)
    if values.requires_grad and torch.is_grad_enabled():
        return partial(_learned, values)
    linear = all(isinstance(bias, KeyBias) and bias.slopes is not None for bias in call.terms.bias)
    return partial(merge.attend, list(_partials(values, call.query_length, linear=linear)))


def _decode(mask: Tensor, call: AttentionCall) -> Tensor:
    return flash_cpu.attend_rows(call.queries[0], call.keys[0], call.values, mask, call.scale)[0]


def _learned(values: Tensor, call: AttentionCall) -> Tensor:
    return LearnedKeys.apply(call.queries[0], call.keys[0], call.values, values, call.scale)


def _values(call: AttentionCall) -> Tensor:
    """All biases of a call, ``[batch or 1, heads, key]``."""
    values = reduce(torch.add, [bias.values for bias in call.terms.bias if isinstance(bias, KeyBias)])
    return values if call.terms.logit_scale == 1 else values * call.terms.logit_scale


def _partials(values: Tensor, queries: int, *, linear: bool = False) -> Iterator[PartialAttention]:
    """Every pair of a query and a key it sees once; the queries are the last positions of ``values``.

    The masks of all blocks' own keys take as much memory as the queries; those of ``linear`` biases are one mask.
    """
    ahead = values.shape[2] - queries
    shared = counted_from(values, slice(ahead, ahead + INNER), slice(ahead, ahead + INNER)) if linear else None
    for start in range(0, queries, OUTER):
        rows = slice(start, min(start + OUTER, queries))
        yield from _before(values, rows, slice(0, ahead + start))
        for first in range(start, rows.stop, INNER):
            block = slice(first, min(first + INNER, rows.stop))
            yield from _before(values, block, slice(ahead + start, ahead + first))
            own = slice(ahead + first, ahead + block.stop)
            size = block.stop - first
            mask = counted_from(values, own, own) if shared is None else shared[:, :, :size, :size]
            yield PartialAttention(0, block, own, causal=True, mask=mask)


def _before(values: Tensor, rows: slice, keys: slice) -> Iterator[PartialAttention]:
    """Keys that end where a block of queries begins, if there are any, with biases relative to the first query."""
    if keys.stop > keys.start:
        first, last = keys.stop, keys.stop + rows.stop - rows.start
        mask = counted_from(values, slice(first, first + 1), keys)
        offset = (values[:, :, first : first + 1] - values[:, :, first:last]).float()
        yield PartialAttention(0, rows, keys, mask=mask, offset=offset)


class LearnedKeys(torch.autograd.Function):
    """The same with gradients also for the bias ``[batch or 1, heads, key]``."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, values: Tensor, scale: float) -> Tensor:
        """Mixed values; saves the tensors of the backward pass."""
        out, lse = merge.mixed(_partials(values, query.shape[2]), (query,), (key,), value, scale)
        ctx.save_for_backward(query, key, value, values, out, lse)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the tensors that `forward` was given."""
        query, key, value, values, out, lse = ctx.saved_tensors
        queries, ahead, d_values = query.shape[2], key.shape[2] - query.shape[2], torch.zeros_like(values)
        starts = range(0, queries, LEARNED_ROWS)
        rows = [slice(start, min(start + LEARNED_ROWS, queries)) for start in starts]
        blocks = [(block, slice(0, block.stop + ahead)) for block in rows]

        def fill(sample: int, head: int, rows: slice, seen: slice, bias: Tensor) -> None:
            of_head = values[sample % len(values), head]
            torch.sub(of_head[None, seen], of_head[rows.start + ahead : rows.stop + ahead, None], out=bias)
            n = rows.stop - rows.start
            bias[:, -n:].masked_fill_(later[:n, :n], -torch.inf)

        def take(sample: int, head: int, rows: slice, seen: slice, padded: Tensor) -> None:
            d_values[sample % len(values), head, seen] += padded[:, seen].sum(0)

        later = torch.ones(LEARNED_ROWS, LEARNED_ROWS, dtype=torch.bool, device=query.device).triu(1)
        tensors = (query, key, value, out, lse, grad)
        return *gradients(tensors, ctx.scale, blocks, fill, take), d_values, None


def counted_from(values: Tensor, indices: slice, keys: slice = slice(None)) -> Tensor:
    """``values [batch, heads, key]`` of keys minus those of queries, ``[batch, heads, query, key]``, float32."""
    return (values[:, :, None, keys] - values[:, :, indices, None]).float()


ROUTE = Route("key_bias", accepts, prepare=prepare)
