"""Scores of pairs of positions, computed by the attention code of patched layers.

A call is built as in a patched layer (prepare, rotate, extra key channels, terms). All tokens are identical, so that
pairs differ by position only. Regions are merged as in the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.routes import dense_blocks, length_rotation
from hf_posenc.attention.visible_pairs import pairs_of
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import Block
from hf_posenc.forward.rotate_qk import region_rotations, rotate_regions
from hf_posenc.forward.split_terms import SplitTerms
from hf_posenc.insight.plots.registry import Target, position_range
from hf_posenc.schemes.base import Scheme

OfBlock = Callable[[Block, slice], Tensor]
"""Function from a block of rows and its slice of rows to a value of each pair, ``[1, heads or 1, n, key]``."""


def seen(call: AttentionCall) -> Tensor:
    """Return the pairs that are visible, bool ``[batch or 1, 1, query, key]``; there is no mask of a caller."""
    return pairs_of(call, slice(0, call.query_length)).seen


def distances(call: AttentionCall) -> Tensor:
    """Return query minus key position in their region, ``[batch, 1, query, key]``, float64; NaN if masked."""
    distance = merged(call, lambda block, _: block.distance[:, None].double())
    return distance.masked_fill(~seen(call), torch.nan)


def added(call: AttentionCall) -> Tensor:
    """Return what biases add to the scores, ``[batch, heads, query, key]``; NaN if masked."""
    bias = merged(call, lambda block, rows: biased(call, block, rows) - block.scores)
    return bias.masked_fill(~seen(call), torch.nan)


def scores(call: AttentionCall) -> Tensor:
    """Return the logits before the softmax, ``[batch, heads, query, key]``; NaN if masked."""
    return logits(call).masked_fill(~seen(call), torch.nan)


def logits(call: AttentionCall) -> Tensor:
    """Return the logits of all pairs, masked or not."""
    values = merged(call, lambda block, rows: biased(call, block, rows)) * call.terms.logit_scale
    factor = call.terms.row_scale
    return values if factor is None else values * factor[..., None]


def biased(call: AttentionCall, block: Block, rows: slice) -> Tensor:
    """Return the scores of a block with all biases of a call."""
    return dense_blocks.add_biases(block.scores, block, call.terms.bias, rows)


def merged(call: AttentionCall, of_block: OfBlock) -> Tensor:
    """Return a value of every pair, computed in its region, ``[batch, heads or 1, query, key]``."""
    by_row = call.terms.row_rotation
    if by_row is not None:
        runs = length_rotation.runs(by_row.length_of(call.ctx.query_positions)[0])
        return torch.cat([merged(length_rotation.rotated_call(call, *run), of_block) for run in runs], dim=2)
    every, keys = slice(0, call.query_length), dense_blocks.upcast(call)[0]
    rows = slice(call.first_query, call.first_query + call.query_length)
    pairs = pairs_of(call, every)
    values: Tensor | None = None
    for number, claimed in pairs.claims.items():
        value = of_block(dense_blocks.block_of(call, number, keys, every, pairs.seen), rows)
        values = value if values is None else torch.where(claimed, value, values)
    return values  # type: ignore[return-value]  # there is always a region


def call_of(target: Target, length: int, coordinates: Tensor | None = None) -> AttentionCall:
    """Build the attention call on a text of ``length`` tokens.

    All channels of queries and keys are equal, so that every pair scores 1 without positions. Hidden states are 0.

    Args:
        target: the scheme.
        length: tokens, from position 0 on.
        coordinates: positions of every token ``[1, token, axes]``, for schemes with several axes.

    Raises:
        OutsideModel: the scheme needs the projections of a layer, and there is no model.
        CannotCombine: parts of a composition conflict.
    """
    scheme, geometry = target.scheme, target.geometry
    positions = scheme.reposition(position_range(length), training=False)
    hidden = torch.zeros(1, length, geometry.width)
    head = torch.full((geometry.head_dim,), geometry.head_dim**-0.25)
    ctx = replace(target.context(positions, hidden), coordinates=coordinates)
    q, k = scheme.prepare(
        head.expand(1, geometry.heads, length, -1).clone(), head.expand(1, geometry.kv_heads, length, -1).clone()
    )
    return attention_call(scheme, q, k, torch.zeros_like(k), ctx)


def attention_call(
    scheme: Scheme, q: Tensor, k: Tensor, v: Tensor, ctx: PositionContext, *, last: int | None = None
) -> AttentionCall:
    """Build the call of a patched layer from prepared states, ``[batch, heads, token, dim]``.

    Args:
        scheme: scheme of the layer.
        q, k, v: queries, keys and values of all tokens.
        ctx: positions of the tokens.
        last: number of query rows, the last ones; None for all.
    """
    queries, copies, values = rotate_regions(region_rotations(scheme, ctx), q, k, v)
    extra = scheme.extra_key_channels(ctx)
    ctx = ctx if extra is None else replace(ctx, extra_key_channels=extra.float())
    if last is not None:
        queries = tuple(one[:, :, -last:] for one in queries)
        ctx = replace(ctx, query_positions=ctx.query_positions[:, -last:])
    split = SplitTerms.of(scheme.terms(ctx))
    queries, keys = split.scaled(queries), split.keys_by_region(copies)
    return AttentionCall(queries, keys, values, split.terms, ctx, None, scheme.geometry.head_dim**-0.5)


def remaps(target: Target) -> bool:
    """Whether the scheme changes the distance of some pairs."""
    return any(region.remaps for region in target.scheme.regions(target.context(position_range(1))))


def temperatures(target: Target, length: int) -> Tensor:
    """Return the factor of the logits of every row, ``[heads or 1, query]``."""
    scheme = target.scheme
    terms = scheme.terms(target.context(scheme.reposition(position_range(length), training=False)))
    factor = torch.full((1, length), terms.logit_scale)
    for scale in (terms.query_scale, terms.row_scale):
        factor = factor if scale is None else factor * (scale if scale.ndim == 2 else scale[0])
    return factor


def of_last_row(values: Tensor) -> Tensor:
    """Return the values ``[…, query, key]`` of the last query by distance, nearest first."""
    return values[..., -1, :].flip(-1)
