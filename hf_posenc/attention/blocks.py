"""The general route: a block of query rows at a time, scores in float32. Exact for every combination of terms.

    o_i = Σ_j softmax_j(logit_scale · row_scale_i · (q_i · k_j · scaling + bias_ij)) v_j       over visible j

Memory is O(rows · keys · heads) for one block, and in training each block is computed again in the backward pass
instead of being kept. With one block of all rows it is the reference that returns the attention weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hf_posenc.attention.call import Call
from hf_posenc.terms import Band, Bias, Block, BlockBias, KeyBias, Region, ToeplitzBias

ROWS = 128  # of 64, 128, 256 the fastest on two CPU cores at length 2048


def attend_by_blocks(call: Call) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    starts = range(0, call.query_length, ROWS)
    keys, values = upcast(call)
    mixed = []
    for start in starts:
        rows = slice(start, min(start + ROWS, call.query_length))
        if torch.is_grad_enabled() and len(starts) > 1:  # a learned bias may be all that has a gradient
            mixed.append(checkpoint(mix_rows, call, keys, values, rows, use_reentrant=False))
        else:
            mixed.append(mix_rows(call, keys, values, rows))
    return torch.cat(mixed, dim=2)


def attend_with_weights(call: Call) -> tuple[Tensor, Tensor]:
    """Mixed values and the attention weights ``[batch, heads, query, key]``: the reference, O(query · key) memory."""
    keys, values = upcast(call)
    mixed, weights = weigh_and_mix(call, keys, values, slice(0, call.query_length))
    return mixed.to(call.values.dtype), weights.to(call.values.dtype)


def upcast(call: Call) -> tuple[tuple[Tensor, ...], Tensor]:
    """Keys and values in float32: once a call, not once a block."""
    return tuple(k.float() for k in call.keys), call.values.float()


def mix_rows(call: Call, keys: tuple[Tensor, ...], values: Tensor, rows: slice) -> Tensor:
    """Mixed values of some rows, in the dtype of the call."""
    return weigh_and_mix(call, keys, values, rows)[0].to(call.values.dtype)


def weigh_and_mix(call: Call, keys: tuple[Tensor, ...], values: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """Mixed values ``[batch, heads, rows, value_dim]`` and weights ``[batch, heads, rows, key]``, float32."""
    terms = call.terms
    seen, added = visibility(call, rows)
    blocks = [block_of(call, number, keys, rows, seen) for number in range(len(terms.regions))]
    logits = merged([biased(block, region, terms.bias) for block, region in zip(blocks, terms.regions, strict=True)],
                    terms.regions, blocks[0])  # fmt: skip
    logits = logits * terms.logit_scale
    if terms.row_scale is not None:
        logits = logits * terms.row_scale[:, :, rows, None]
    if terms.split:
        seen = seen & covered(terms.regions, blocks[0])[:, None]
    # A row that sees nothing stays finite.
    logits = (logits + added).masked_fill(~seen, torch.finfo(logits.dtype).min)
    weights = softmax_with_sink(logits, terms.sink)
    weights = nn.functional.dropout(weights, call.dropout) if call.dropout else weights
    mixed = spread(weights, values)
    for value in terms.values:
        mixed = mixed + value.of_weights(weights, blocks[0])
    return mixed, weights


def block_of(call: Call, number: int, keys: tuple[Tensor, ...], rows: slice, seen: Tensor) -> Block:
    """The rows in one region, where queries and keys were turned as that has it."""
    query = call.queries[number][:, :, rows].float()
    here, there = call.ctx.query_positions[:, rows], call.ctx.key_positions
    products = scores(query, keys[number]) * call.scaling
    return Block(query, keys[number], products, call.scaling, rows, here, there, seen)


def biased(block: Block, region: Region, biases: tuple[Bias, ...]) -> Tensor:
    """Scores of a block with all biases, ``[batch, heads, n, key]``."""
    logits = block.scores
    for bias in biases:
        if isinstance(bias, KeyBias):
            logits = logits + bias.values[:, :, None, :]
        elif isinstance(bias, ToeplitzBias):
            logits = logits + bias.of_distance(distance_in(region, block)).transpose(0, 1)
        elif isinstance(bias, BlockBias):
            logits = logits + bias.of_block(block)
    return logits


def distance_in(region: Region, block: Block) -> Tensor:
    """Distances as a region has them, ``[batch or 1, n, key]``."""
    here, there = region.query_at(block.query_positions), region.key_at(block.key_positions)
    return here[:, :, None] - there[:, None, :]


def merged(logits: list[Tensor], regions: tuple[Region, ...], block: Block) -> Tensor:
    """Each pair's logit from the region it belongs to."""
    result = logits[0]
    for of_region, region in zip(logits[1:], regions[1:], strict=True):
        result = torch.where(holds(region.band, block)[:, None], of_region, result)
    return result


def covered(regions: tuple[Region, ...], block: Block) -> Tensor:
    """Which pairs belong to any region, bool ``[batch or 1, n, key]``."""
    result = holds(regions[0].band, block)
    for region in regions[1:]:
        result = result | holds(region.band, block)
    return result


def holds(band: Band, block: Block) -> Tensor:
    """Which pairs of a block lie in a band, bool ``[batch or 1, n, key]``."""
    return band.holds(block.query_positions[:, :, None], block.key_positions[:, None, :])


def visibility(call: Call, rows: slice) -> tuple[Tensor, Tensor | float]:
    """Who sees whom, bool, broadcasts to ``[batch, 1, rows, key]``; and what a float mask adds for those who do."""
    here, there = call.ctx.query_positions[:, rows, None], call.ctx.key_positions[:, None, :]
    visible = call.terms.visible
    if call.mask is None and call.ctx.causal:
        visible = visible & Band(0, None)
    seen = visible.holds(here, there)[:, None]
    mask = call.mask_of(rows)
    if mask is None:
        return seen, 0.0
    mask = mask[..., : there.shape[-1]]
    if mask.dtype == torch.bool:
        return seen & mask, 0.0
    hidden = mask <= torch.finfo(mask.dtype).min
    return seen & ~hidden, mask.masked_fill(hidden, 0.0)


def softmax_with_sink(logits: Tensor, sink: Tensor | None) -> Tensor:
    """Weights over the keys; a sink ``[heads]`` is one more key that takes its share and gives nothing."""
    if sink is None:
        return torch.softmax(logits, dim=-1)
    column = sink.float()[None, :, None, None].expand(*logits.shape[:3], 1)
    return torch.softmax(torch.cat((logits, column), dim=-1), dim=-1)[..., :-1]


def scores(query: Tensor, key: Tensor) -> Tensor:
    """q · k for grouped heads without repeating keys: ``[batch, heads, rows, key]``."""
    batch, heads, rows, dim = query.shape
    groups = key.shape[1]
    grouped = query.reshape(batch, groups, heads // groups * rows, dim)
    return (grouped @ key.transpose(-1, -2)).view(batch, heads, rows, key.shape[2])


def spread(weights: Tensor, values: Tensor) -> Tensor:
    """Σ_j w_ij v_j for grouped heads: ``[batch, heads, rows, value_dim]``."""
    batch, heads, rows, keys = weights.shape
    groups = values.shape[1]
    grouped = weights.reshape(batch, groups, heads // groups * rows, keys)
    return (grouped @ values).view(batch, heads, rows, values.shape[-1])
