"""Bias of the key alone: one stride-0 mask row and the causal flag, in one kernel call for a block of queries.

    score[i, j] = q_i · k_j · scaling + c_j − c_s        s = the first query of the block

The constant of a block changes only the rounding of the scores. It is that of the first query, so that rounding does
not depend on later tokens. The mask is float32 for queries of any dtype: bfloat16 would round its differences away.
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
from hf_posenc.attention.merge import Partial
from hf_posenc.attention.routes.bias_gradient import ROWS as LEARNED_ROWS
from hf_posenc.attention.routes.bias_gradient import Gradients
from hf_posenc.core.terms import KeyBias
from hf_posenc.core.tracing import is_traced

# A short text is worth its digits: of 64 rows a slope of 1/2 makes no more than 32, whose last digit is 2e-6. In a long
# one that many calls take a quarter of the time; 1024 rows cost 1 to 5 % and still lose a fifth of what one count does.
SHORT = 1024
ROWS = {True: 64, False: 1024}


def accepts(call: AttentionCall) -> bool:
    """Causal prefill or decoding on the CPU, with or without a cache, with key biases and no other terms."""
    terms = call.terms
    return (
        len(terms.bias) > 0
        and call.last_rows
        and call.ctx.causal
        and all(isinstance(b, KeyBias) for b in terms.bias)
        and terms.only("bias")
        and flash_cpu.usable(call.queries[0], call.keys[0], call.values)
    )


def attend(call: AttentionCall) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    return prepare(call)(call)


def prepare(call: AttentionCall) -> Callable[[AttentionCall], Tensor]:
    """The function that computes calls with these biases; a decode query's mask is made here, once for all layers."""
    if call.query_length == 1 and not torch.is_grad_enabled() and not is_traced():
        return partial(_decode, counted_from(_values(call), slice(-1, None)), call.terms.logit_scale)
    values = _values(call)
    if values.requires_grad and torch.is_grad_enabled():
        return partial(_learned, values)
    return partial(_merged, values)


def _decode(mask: Tensor, logit_scale: float, call: AttentionCall) -> Tensor:
    scale = call.scaling * logit_scale
    return flash_cpu.attend(call.queries[0], call.keys[0], call.values, causal=False, mask=mask, scale=scale)[0]


def _learned(values: Tensor, call: AttentionCall) -> Tensor:
    scale = call.scaling * call.terms.logit_scale
    return LearnedKeys.apply(call.queries[0], call.keys[0], call.values, values, scale)


def _merged(values: Tensor, call: AttentionCall) -> Tensor:
    query, scale = call.queries[0], call.scaling * call.terms.logit_scale
    cuts = [part for _, _, block in _blocks(values, query.shape[2]) for part in block]
    return merge.attend((query,), (call.keys[0],), call.values, cuts, scale)


def _values(call: AttentionCall) -> Tensor:
    """All biases of a call, ``[batch or 1, heads, key]``."""
    values = reduce(torch.add, [bias.values for bias in call.terms.bias if isinstance(bias, KeyBias)])
    return values if call.terms.logit_scale == 1 else values * call.terms.logit_scale


def _blocks(values: Tensor, queries: int) -> Iterator[tuple[slice, Tensor, list[Partial]]]:
    """Blocks of queries, the bias relative to their first one, ``[batch or 1, heads, 1, key]``, and their partials."""
    keys = values.shape[2]
    step = ROWS[keys <= SHORT]
    for start in range(0, queries, step):
        rows = slice(start, min(start + step, queries))
        first, end = keys - queries + rows.start, keys - queries + rows.stop
        mask = counted_from(values, slice(first, first + 1))
        before = [Partial(0, rows, slice(0, first), mask=mask[..., :first])] if first > 0 else []
        yield rows, mask, [*before, Partial(0, rows, slice(first, end), causal=True, mask=mask[..., first:end])]


class LearnedKeys(torch.autograd.Function):
    """The same with gradients also for the bias ``[batch or 1, heads, key]``."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, values: Tensor, scale: float) -> Tensor:
        """Mixed values; saves the tensors of the backward pass."""
        total = merge.PartialSum(query)
        for _, _, block in _blocks(values, query.shape[2]):
            for p in block:
                more = flash_cpu.attend(
                    query[:, :, p.rows], key[:, :, p.keys], value[:, :, p.keys],
                    causal=p.causal, mask=p.mask, scale=scale,  # type: ignore[arg-type]
                )  # fmt: skip
                total.add(p.rows, *more)
        out = total.out.to(query.dtype)
        ctx.save_for_backward(query, key, value, values, out, total.lse)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the tensors that `forward` was given."""
        query, key, value, values, out, lse = ctx.saved_tensors
        ahead, d_values = key.shape[2] - query.shape[2], torch.zeros_like(values)
        blocks, masks = [], {}
        for block, mask, _ in _blocks(values, query.shape[2]):
            for start in range(block.start, block.stop, LEARNED_ROWS):
                rows = slice(start, min(start + LEARNED_ROWS, block.stop))
                blocks.append((rows, slice(0, rows.stop + ahead)))
                masks[start] = mask  # the log-sum-exp is relative to the same query as in the forward pass

        def fill(sample: int, head: int, rows: slice, seen: slice, bias: Tensor) -> None:
            bias.copy_(masks[rows.start][sample % len(values), head, :, seen].expand_as(bias))
            n = rows.stop - rows.start
            bias[:, -n:].masked_fill_(later[:n, :n], -torch.inf)

        def take(sample: int, head: int, rows: slice, seen: slice, padded: Tensor) -> None:
            d_values[sample % len(values), head, seen] += padded[:, seen].sum(0)

        later = torch.ones(LEARNED_ROWS, LEARNED_ROWS, dtype=torch.bool, device=query.device).triu(1)
        gradients = Gradients((query, key, value, out, lse, grad), ctx.scale).run(blocks, fill, take)
        return *gradients, d_values, None


def counted_from(values: Tensor, indices: slice) -> Tensor:
    """``values [batch, heads, key]`` minus those of some queries, ``[batch, heads, row, key]``, float32."""
    return (values[:, :, None, :] - values[:, :, indices, None]).float()
