"""The general route: one block of queries at a time, scores in float32. Exact for every combination of terms.

    o_i = Σ_j softmax_j(logit_scale · row_scale_i · (q_i · k_j · scaling + bias_ij)) v_j       over visible j

A model's own score cap (``softcap``) acts on q_i · k_j · scaling alone.

Memory is O(rows · keys · heads) for one block. In training, the backward pass recomputes each block instead of storing
it. With a single block of all queries this is the reference that returns the attention weights, and the route of graphs
for any length. A graph for one length holds the scores of one block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import by_device
from hf_posenc.attention.route import Compute, Route
from hf_posenc.attention.routes.key_bias import relative_to
from hf_posenc.attention.visible_pairs import Pairs, pairs_of
from hf_posenc.core.grouped_heads import half_products, products
from hf_posenc.core.regions import EVERYTHING
from hf_posenc.core.terms import Bias, Block, BlockBias, KeyBias, ToeplitzBias
from hf_posenc.core.tracing import has_dynamic_length, is_traced

ROWS = 128  # of 64, 128, 256 the fastest on two CPU cores at length 2048
MOST_KEPT_PAIRS = 2**22  # a call with more has its visible pairs, a byte each, computed in every layer
BLOCK_SCORES = 2**25  # 128 MiB, on devices other than the CPU: smaller blocks leave most of such a device idle


def attend(call: AttentionCall) -> Tensor:
    """Attention output ``[batch, heads, query, value_dim]``."""
    if in_one_block(call):
        return mix_rows(call, *upcast(call), slice(0, call.query_length))
    size = rows_of_block(call)
    starts = range(0, call.query_length, size)
    keys, values = operands(call)
    outputs = []
    for start in starts:
        rows = slice(start, min(start + size, call.query_length))
        arguments = _without_later_keys(rows, call, keys, values) if len(starts) > 1 else (call, keys, values)
        if torch.is_grad_enabled() and len(starts) > 1:  # a learned bias may be the only tensor with a gradient
            outputs.append(checkpoint(mix_rows, *arguments, rows, use_reentrant=False))
        else:
            outputs.append(mix_rows(*arguments, rows))
    return torch.cat(outputs, dim=2)


def in_one_block(call: AttentionCall) -> bool:
    """Whether a call is traced for any number of queries or keys, or exported with gradients enabled.

    A loop over blocks would fix the number of queries. An exported graph contains the operators of the forward pass
    only, without the custom backward passes of other routes. Most calls in compiled graphs become one operator
    (`hf_posenc.attention.custom_operator`) and do not come here. Those that do hold all scores in memory.
    """
    trained = torch.compiler.is_exporting() and torch.is_grad_enabled()
    return is_traced() and (trained or has_dynamic_length(call.query_length, call.key_length))


def prepare(call: AttentionCall) -> Compute:
    """The function for calls like ``call``. Visible pairs of a small call are computed here, once for all layers."""
    if not is_small(call) or torch.is_grad_enabled() or call.query_length > rows_of_block(call):
        return attend  # asked in this order: a comparison of lengths would fix those of a graph
    rows = slice(0, call.query_length)
    pairs = pairs_of(call, rows)
    return lambda layer_call: mix_rows(layer_call, *operands(layer_call), rows, pairs)


def prepare_with_weights(call: AttentionCall) -> Callable[[AttentionCall], tuple[Tensor, Tensor]]:
    """`prepare` for `attend_with_weights`, which also returns the attention weights."""
    pairs = pairs_of(call, slice(0, call.query_length)) if is_small(call) else None
    return partial(attend_with_weights, pairs=pairs)


def is_small(call: AttentionCall) -> bool:
    """Whether the visible pairs of a call may be kept for all layers: there are few, and nothing is traced."""
    return not is_traced() and call.query_length * call.key_length <= MOST_KEPT_PAIRS


def rows_of_block(call: AttentionCall) -> int:
    """Number of queries in a block."""
    if call.values.device.type == "cpu":
        return ROWS
    return max(ROWS, BLOCK_SCORES // (len(call.values) * call.heads * call.key_length))


def _without_later_keys(
    rows: slice, call: AttentionCall, keys: tuple[Tensor, ...], values: Tensor
) -> tuple[AttentionCall, tuple[Tensor, ...], Tensor]:
    """The call and its keys and values, without the keys that are later than every query of a block."""
    if not call.ctx.causal or call.mask is not None:
        return call, keys, values
    stop = call.first_query + rows.stop
    return call.with_keys(stop), tuple(key[:, :, :stop] for key in keys), values[:, :, :stop]


def attend_with_weights(call: AttentionCall, pairs: Pairs | None = None) -> tuple[Tensor, Tensor]:
    """Attention output and weights ``[batch, heads, query, key]``: the reference, with O(query · key) memory."""
    out, weights = weigh_and_mix(call, *upcast(call), slice(0, call.query_length), pairs)
    return out.to(call.values.dtype), weights.to(call.values.dtype)


def upcast(call: AttentionCall) -> tuple[tuple[Tensor, ...], Tensor]:
    """Keys and values in at least float32, once per call instead of once per block."""
    return tuple(map(at_least_float32, call.keys)), at_least_float32(call.values)


def operands(call: AttentionCall) -> tuple[tuple[Tensor, ...], Tensor]:
    """`upcast`, except for a decode query on CUDA: keys and values then stay in the cache's dtype.

    This needs that only matrix products read them, without gradients.
    """
    read = call.terms.values or call.dropout or any(isinstance(bias, BlockBias) for bias in call.terms.bias)
    is_decode = call.query_length == 1 and not torch.is_grad_enabled()
    if is_decode and by_device.on_cuda(call.values.device) and not read:
        return call.keys, call.values
    return upcast(call)


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor in float32, or unchanged in float64."""
    return x if x.dtype == torch.float64 else x.float()


def mix_rows(
    call: AttentionCall, keys: tuple[Tensor, ...], values: Tensor, rows: slice, pairs: Pairs | None = None
) -> Tensor:
    """Attention output of some queries, in the dtype of the call."""
    return weigh_and_mix(call, keys, values, rows, pairs)[0].to(call.values.dtype)


def weigh_and_mix(
    call: AttentionCall, keys: tuple[Tensor, ...], values: Tensor, rows: slice, pairs: Pairs | None = None
) -> tuple[Tensor, Tensor]:
    """Attention output ``[batch, heads, rows, value_dim]`` and weights ``[batch, heads, rows, key]``, float32.

    ``keys`` and ``values`` are `operands`. ``pairs`` is the result of `pairs_of` for these rows, if it was kept.
    """
    terms, (claims, seen, added) = call.terms, pairs or pairs_of(call, rows)
    indices = slice(call.first_query + rows.start, call.first_query + rows.stop)
    needs_blocks = len(terms.bias) + len(terms.values) > 0  # else no term reads the positions in a region
    blocks = {number: block_of(call, number, keys, rows, seen) for number in (claims if needs_blocks else ())}

    def logits_in(number: int) -> Tensor:
        if not needs_blocks:
            return scores_in(call, number, keys, rows)[1]
        return add_biases(blocks[number].scores, blocks[number], terms.bias, indices)

    first, *others = claims
    logits = logits_in(first)
    for number in others:
        logits = torch.where(claims[number], logits_in(number), logits)
    if terms.logit_scale != 1.0:  # each factor costs a pass over all pairs, forwards and backwards
        logits = logits * terms.logit_scale
    if terms.row_scale is not None:
        logits = logits * terms.row_scale[:, :, rows, None]
    if added is not None:
        logits = logits + added
    logits = hide(logits, seen, call, rows)
    weights = softmax_with_sink(logits, terms.sink)
    weights = nn.functional.dropout(weights, call.dropout) if call.dropout else weights
    out = spread(weights, values)
    for value in terms.values:
        block = for_content_biases(blocks[0])
        out = out + value.of_weights(weights.to(block.query.dtype), block)
    return out, weights


def hide(logits: Tensor, seen: Tensor, call: AttentionCall, rows: slice) -> Tensor:
    """Logits with the lowest finite number at hidden pairs, so that queries without a visible key stay finite."""
    lowest = torch.finfo(logits.dtype).min
    are_scores = len(call.terms.bias) == 0 and len(call.terms.values) > 0  # of a block that is read later
    if is_traced() or are_scores or not ends_with_own_keys(call, rows):
        return logits.masked_fill(~seen, lowest)
    own = slice(logits.shape[-1] - logits.shape[-2], None)  # only these columns of a causal block have later keys
    with torch.no_grad():  # weights of hidden pairs are exactly zero, and so are their gradients
        logits[..., own].masked_fill_(~seen[..., own], lowest)
    return logits


def ends_with_own_keys(call: AttentionCall, rows: slice) -> bool:
    """Whether the rows are the last positions of the keys, and only causality hides pairs."""
    unrestricted = call.mask is None and not call.terms.split and call.terms.visible == EVERYTHING
    return unrestricted and call.ctx.causal and call.key_length == call.first_query + rows.stop


def block_of(call: AttentionCall, number: int, keys: tuple[Tensor, ...], rows: slice, seen: Tensor) -> Block:
    """The block of some queries in one region, with its rotated queries and keys and its positions."""
    region, (query, scores) = call.terms.regions[number], scores_in(call, number, keys, rows)
    query_positions = region.query_at(call.ctx.query_positions[:, rows])
    key_positions = region.key_at(call.ctx.key_positions)
    steady = call.ctx.steady and not region.remaps
    return Block(query, keys[number], scores, call.scaling, rows, query_positions, key_positions, seen, steady)


def scores_in(call: AttentionCall, number: int, keys: tuple[Tensor, ...], rows: slice) -> tuple[Tensor, Tensor]:
    """Queries of a region in float32, and their scores before biases, ``[batch, heads, rows, key]``."""
    query = at_least_float32(call.queries[number][:, :, rows])
    if keys[number].dtype == query.dtype:
        scores = products(query * call.scaling, keys[number])
    else:
        scores = half_products(query.to(keys[number].dtype), keys[number]) * call.scaling
    return query, scores if call.softcap is None else call.softcap * torch.tanh(scores / call.softcap)


def add_biases(logits: Tensor | None, block: Block, biases: tuple[Bias, ...], indices: slice) -> Tensor:
    """Add all biases to the logits (or None) of a block whose queries have the indices ``indices`` among the keys,
    ``[batch, heads, n, key]``."""
    for bias in biases:
        if isinstance(bias, KeyBias):
            added = relative_to(bias.values, indices)[..., : block.key.shape[2]]
        elif isinstance(bias, ToeplitzBias):
            added = block.of_distance(bias.of_distance)
        else:
            added = bias.of_block(for_content_biases(block))
        added = added.to(block.query.dtype)  # a third-party scheme may compute in float64
        logits = added if logits is None else logits + added
    return logits  # type: ignore[return-value]


def for_content_biases(block: Block) -> Block:
    """The block in float32, which content biases expect in float64 models, too."""
    return block.in_float32() if block.query.dtype == torch.float64 else block


def softmax_with_sink(logits: Tensor, sink: Tensor | None) -> Tensor:
    """Attention weights of the keys. A sink ``[heads]`` is the logit of one extra key without a value."""
    if sink is None:
        return torch.softmax(logits, dim=-1)
    column = sink.to(logits.dtype)[None, :, None, None].expand(*logits.shape[:3], 1)
    return torch.softmax(torch.cat((logits, column), dim=-1), dim=-1)[..., :-1]


def spread(weights: Tensor, values: Tensor) -> Tensor:
    """Σ_j w_ij v_j for grouped heads: ``[batch, heads, rows, value_dim]``, in the dtype of the values."""
    weights = weights.to(values.dtype)
    batch, heads, rows, keys = weights.shape
    groups = values.shape[1]
    if has_dynamic_length(rows, keys):  # merging the heads would fix the length of the graph
        return (weights.unflatten(1, (groups, -1)) @ values[:, :, None]).flatten(1, 2)
    grouped = weights.reshape(batch, groups, heads // groups * rows, keys)
    return (grouped @ values).view(batch, heads, rows, values.shape[-1])


ROUTE = Route("dense_blocks", lambda call: True, prepare)
