"""A bias of the key alone, in kernel calls whose float32 masks are near zero wherever weights are large.

    score[i, j] = q_i · k_j · scaling + c_j − c_i

The kernel adds the mask in float32, so a mask far from zero costs the scores their last digits. For keys before a block
of queries, the mask is one stride-0 row, c_j − c_s, with s the first query of the block. The rest, c_s − c_i, is added
to the log-sum-exp; these keys have weight only where it is small. For keys of the block itself, the mask is c_j − c_i
for every pair. No constant depends on later tokens, so neither does the rounding. The mask is float32 for queries of
any dtype: bfloat16 would round its differences away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce

import torch
from torch import Tensor

from hf_posenc.attention import merge
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.merge import PartialAttention
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes.learned_bias import ROWS as LEARNED_ROWS
from hf_posenc.attention.routes.learned_bias import Gradients, LearnedBias, gradients, pieces
from hf_posenc.core.terms import KeyBias

OUTER = 1024  # queries that read the keys before them in one call; fewer and larger calls are faster
INNER = 64  # queries whose own keys get a mask of all pairs


def accepts(call: AttentionCall) -> bool:
    """Whether the call is causal on the CPU, without a mask, and its only terms are key biases."""
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
    """The function that computes calls with these biases."""
    values = _values(call)
    if values.requires_grad and torch.is_grad_enabled():
        return partial(_learned, values)
    linear = all(isinstance(bias, KeyBias) and bias.slopes is not None for bias in call.terms.bias)
    return partial(merge.attend, list(_partials(values, call.query_length, linear=linear)))


def _learned(values: Tensor, call: AttentionCall) -> Tensor:
    cut = partial(_partials, queries=call.query_length)
    return LearnedBias.apply(cut, _gradients, call.scale, call.queries[0], call.keys[0], call.values, values)


def _values(call: AttentionCall) -> Tensor:
    """Sum of the biases of a call, ``[batch or 1, heads, key]``."""
    values = reduce(torch.add, [bias.values for bias in call.terms.bias if isinstance(bias, KeyBias)])
    return values if call.terms.logit_scale == 1 else values * call.terms.logit_scale


def _partials(values: Tensor, queries: int, *, linear: bool = False) -> Iterator[PartialAttention]:
    """Partials that cover every visible pair once; the queries are the last positions of ``values``.

    The blocks' masks for their own keys take as much memory as the queries. ``linear`` biases share a single mask.
    """
    ahead = values.shape[2] - queries
    shared = relative_to(values, slice(ahead, ahead + INNER), slice(ahead, ahead + INNER)) if linear else None
    for start in range(0, queries, OUTER):
        rows = slice(start, min(start + OUTER, queries))
        yield from _before(values, rows, slice(0, ahead + start))
        for first in range(start, rows.stop, INNER):
            block = slice(first, min(first + INNER, rows.stop))
            yield from _before(values, block, slice(ahead + start, ahead + first))
            own = slice(ahead + first, ahead + block.stop)
            size = block.stop - first
            mask = relative_to(values, own, own) if shared is None else shared[:, :, :size, :size]
            yield PartialAttention(0, block, own, causal=True, mask=mask)


def _before(values: Tensor, rows: slice, keys: slice) -> Iterator[PartialAttention]:
    """The partial of the keys before a block of queries, if any, with biases relative to the first query."""
    if keys.stop > keys.start:
        first, last = keys.stop, keys.stop + rows.stop - rows.start
        mask = relative_to(values, slice(first, first + 1), keys)
        offset = (values[:, :, first : first + 1] - values[:, :, first:last]).float()
        yield PartialAttention(0, rows, keys, mask=mask, offset=offset)


def _gradients(tensors: tuple[Tensor, ...], values: Tensor, scale: float) -> Gradients:
    """Gradients of query, key, value and bias ``[batch or 1, heads, key]``, from the first argument of `gradients`."""
    query, key = tensors[:2]
    queries, ahead, d_values = query.shape[2], key.shape[2] - query.shape[2], torch.zeros_like(values)
    blocks = [(block, slice(0, block.stop + ahead)) for block in pieces(0, queries, LEARNED_ROWS)]
    later = torch.ones(LEARNED_ROWS, LEARNED_ROWS, dtype=torch.bool, device=query.device).triu(1)

    def write_bias(sample: int, head: int, rows: slice, seen: slice, bias: Tensor) -> None:
        head_values = values[sample % len(values), head]
        torch.sub(head_values[None, seen], head_values[rows.start + ahead : rows.stop + ahead, None], out=bias)
        n = rows.stop - rows.start
        bias[:, -n:].masked_fill_(later[:n, :n], -torch.inf)

    def add_gradient(sample: int, head: int, rows: slice, seen: slice, padded: Tensor) -> None:
        d_values[sample % len(values), head, seen] += padded[:, seen].sum(0)

    return *gradients(tensors, scale, blocks, write_bias, add_gradient), d_values


def relative_to(values: Tensor, indices: slice, keys: slice = slice(None)) -> Tensor:
    """Difference of ``values [batch, heads, key]``, key minus query, ``[batch, heads, query, key]``, float32."""
    return (values[:, :, None, keys] - values[:, :, indices, None]).float()


ROUTE = Route("key_bias", accepts, prepare)
