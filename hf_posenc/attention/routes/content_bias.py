"""Content-dependent biases without gradients, computed block by block and passed to the kernel as a mask.

The kernel replaces eight passes of the general route over the scores, and a block ends at its last visible key.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes.dense_blocks import add_biases, at_least_float32
from hf_posenc.attention.visible_pairs import visibility
from hf_posenc.core.grouped_heads import products
from hf_posenc.core.terms import Bias, Block, BlockBias
from hf_posenc.core.tracing import is_traced

ROWS = 128  # of 64, 128, 256 the fastest


def accepts(call: AttentionCall) -> bool:
    """Whether the call is a prefill on the CPU without gradients, with a content bias and no terms except biases."""
    return (
        any(isinstance(bias, BlockBias) for bias in call.terms.bias)
        and (call.is_unmasked_suffix or (call.mask is not None and call.query_length > 1 and call.start is None))
        and call.dropout == 0.0
        and not torch.is_grad_enabled()
        and not is_traced()
        and call.terms.only("bias")
        and flash_cpu.usable(call.queries[0], call.keys[0], call.values)
    )


def attend(call: AttentionCall) -> Tensor:
    """Attention output ``[batch, heads, query, value_dim]``."""
    keys, (query, call) = at_least_float32(call.keys[0]), _shifted(call)
    if call.query_length == 1:
        return _attend_rows(call, query, keys, slice(0, 1))
    out = torch.empty_like(query)
    for start in range(0, call.query_length, ROWS):
        rows = slice(start, min(start + ROWS, call.query_length))
        out[:, :, rows] = _attend_rows(call, query[:, :, rows], keys, rows)
    return out


def _attend_rows(call: AttentionCall, query: Tensor, keys: Tensor, rows: slice) -> Tensor:
    """Attention output of some queries; ``query`` holds the shifted queries that are multiplied with the keys."""
    visible, added = _visible(call, rows)
    seen = slice(0, visible.shape[-1])
    mask = _biases(call, keys, rows, visible, added)
    key, value = call.keys[0][:, :, seen], call.values[:, :, seen]
    return flash_cpu.attend(query, key, value, causal=False, mask=mask, scale=call.scale)[0]


def _shifted(call: AttentionCall) -> tuple[Tensor, AttentionCall]:
    """Queries with the shifts of all biases added, and the call with the part of the biases that no shift covers."""
    query = call.queries[0]
    if not any(isinstance(bias, BlockBias) and bias.shifted is not None for bias in call.terms.bias):
        return query, call
    remaining: list[Bias] = []
    for bias in call.terms.bias:
        if isinstance(bias, BlockBias) and bias.shifted is not None:
            query = query + bias.shifted.by[:, None].to(query.dtype)
            remaining.append(replace(bias, of_block=bias.shifted.rest, shifted=None))
        else:
            remaining.append(bias)
    return query, replace(call, terms=replace(call.terms, bias=tuple(remaining)))


def _visible(call: AttentionCall, rows: slice) -> tuple[Tensor, Tensor | None]:
    """Visible pairs of some queries, without later keys in a decoder; and what a mask adds to the logits, or None."""
    stop = call.first_query + rows.stop if call.ctx.causal else call.key_length
    if call.mask is None:
        n = rows.stop - rows.start
        pairs = torch.ones(1, 1, n, stop, dtype=torch.bool, device=call.values.device)
        return pairs.tril_(stop - n) if call.ctx.causal and n > 1 else pairs, None
    visible, added = visibility(call, rows)
    if visible[..., stop:].any():  # the caller's own mask shows later keys
        stop = call.key_length
    return visible[..., :stop], None if added is None else added[..., :stop]


def _biases(call: AttentionCall, keys: Tensor, rows: slice, visible: Tensor, added: Tensor | None) -> Tensor:
    """Sum of the biases of some queries, −∞ at hidden keys, ``[batch or 1, heads, rows, seen]``, float32."""
    region, n, stop = call.terms.regions[0], *visible.shape[-2:]
    query_positions = region.query_at(call.ctx.query_positions[:, rows])
    key_positions = region.key_at(call.ctx.key_positions[:, :stop])
    query, keys = at_least_float32(call.queries[0][:, :, rows]), keys[:, :, :stop]
    reads_scores = any(isinstance(bias, BlockBias) and bias.reads_scores for bias in call.terms.bias)
    scores = products(query * call.scaling, keys) if reads_scores else query.new_empty(0)
    steady = call.ctx.steady and not region.remaps
    block = Block(query, keys, scores, call.scaling, rows, query_positions, key_positions, visible, steady)
    indices = slice(call.first_query + rows.start, call.first_query + rows.stop)
    bias = add_biases(None, block, call.terms.bias, indices)
    if call.terms.logit_scale != 1.0:
        bias = bias * call.terms.logit_scale
    elif reads_scores and len(call.terms.bias) == 1:
        bias = bias.clone()
    if call.mask is not None:
        return (bias if added is None else bias + added).masked_fill(~visible, -torch.inf)
    if call.ctx.causal and n > 1:  # only the last square has later keys
        bias[..., -n:].masked_fill_(~visible[..., -n:], -torch.inf)
    return bias


ROUTE = Route("content_bias", accepts, lambda call: attend)
