"""The keys that a layer attends to, and a mask for them: its cache may have dropped some, or have room for more.

transformers makes one mask for all layers of a kind. It does not fit a layer whose cache has gaps
(`hf_posenc.cache.eviction`), nor one that keeps all keys beside such layers: masks of these are made here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_posenc.cache.eviction import EVICTS, EvictingLayer, layer_of
from hf_posenc.cache.key_layout import grows, held_layer
from hf_posenc.core.context import PositionContext
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import BackendCannotCarry
from hf_posenc.forward.layer import PatchedLayer
from hf_posenc.forward.positions import ForwardContext

if TYPE_CHECKING:
    from transformers import Cache


def mask_in_reach(
    mask: Any,
    ctx: PositionContext,
    cache: Cache | None,
    layer: PatchedLayer,
    forward: ForwardContext,
    backend: str,
) -> tuple[Any, PositionContext]:
    """A mask for the keys that a layer can attend to, None where causality says it all; and the positions of these."""
    index, length, keys = layer.layer_idx, ctx.query_positions.shape[1], ctx.key_positions.shape[1]
    if mask is not None and backend == "sdpa" and hides_later_alone(cache, layer, forward):
        mask = None
    if mask is None and ctx.causal and 1 < length < keys:
        # Prefill of an empty static cache: transformers passes no mask, and nothing is written behind the queries.
        ctx = replace(ctx, key_positions=ctx.key_positions[:, :length])
    if forward.own_mask:
        return mask_of_held(mask, cache, index, length), ctx
    if mask is not None:
        of_others = isinstance(mask, Tensor) and 1 < mask.shape[-1] < keys  # of layers that dropped some
    else:
        of_others = cache is not None and EVICTS in cache.__dict__ and reach_is_hidden(layer, keys, cache)
    evicting = None if ctx.contiguous else layer_of(cache, index)
    if (evicting is not None and evicting.gaps) or of_others:
        return mask_of_gaps(ctx, columns_in_reach(ctx, cache, index), layer, backend), ctx
    return mask, ctx


def hides_later_alone(cache: Cache | None, layer: PatchedLayer, forward: ForwardContext) -> bool:
    """Whether a mask is of causality alone: while tracing, transformers makes one where it would have made none.

    It hides more in a layer that does not see all keys, and the values of a trace do not tell.
    """
    if not forward.contiguous or not is_traced() or layer.window is not None or layer.chunk is not None:
        return False
    index = layer.layer_idx
    return cache is None or (grows(cache, index) and cache.get_seq_length(index) == 0)


def mask_of_held(mask: Tensor | None, cache: Cache | None, layer: int | None, length: int) -> Tensor | None:
    """Columns of a caller's mask ``[batch or 1, heads or 1, query, token]`` for the keys that a layer still holds.

    Args:
        mask: over all tokens of the text, or over the keys of this layer alone.
        cache: before it takes the new tokens.
        layer: index of the layer in the cache.
        length: number of new tokens.
    """
    found = held_layer(cache, layer)
    if mask is None or found is None:
        return mask
    if isinstance(found, EvictingLayer):
        return mask[..., found.columns(length, mask.device)] if found.gaps else mask
    keys = found.get_mask_sizes(length)[0] if found.is_sliding else mask.shape[-1]
    return mask[..., :keys]  # a static layer has a place for each token of its window, until it drops one


def reach_is_hidden(layer: PatchedLayer, keys: int, cache: Cache) -> bool:
    """Whether a layer kept keys that it does not see, where others dropped theirs: masks are made for those."""
    dropped = any(isinstance(held, EvictingLayer) and held.gaps for held in cache.layers)
    return dropped and (layer.chunk is not None or (layer.window is not None and keys > layer.window))


def mask_of_gaps(ctx: PositionContext, columns: Tensor, layer: PatchedLayer, backend: str) -> Tensor | None:
    """Visible keys, bool ``[batch or 1, 1, query, key]``; None for one query that sees every key.

    Args:
        ctx: positions of the queries and of the keys in reach.
        columns: indices of these keys in the text, ``[key]``; the queries are the last of them.
        layer: what it sees of its own.
        backend: attention implementation in use.

    Raises:
        BackendCannotCarry: the backend has masks of its own kind.
    """
    length = ctx.query_positions.shape[1]
    if length == 1 and ctx.real_keys is None and layer.window is None and layer.chunk is None:
        return None
    if backend not in ("eager", "sdpa"):
        raise BackendCannotCarry(
            f"The attention backend {backend!r} can continue from a cache that dropped keys only token by token. "
            'Use model.set_attn_implementation("sdpa").'
        )
    seen = ctx.distance() >= 0
    if layer.window is not None:
        seen = seen & (columns[-length:, None] - columns < layer.window)
    if layer.chunk is not None:
        places = (columns[None, -length:], columns[None])
        here, there = places if ctx.real_keys is None else (ctx.query_positions, ctx.key_positions)  # without padding
        seen = seen & (here[:, :, None] // layer.chunk == there[:, None, :] // layer.chunk)
    return (seen if ctx.real_keys is None else seen & ctx.real_keys[:, None, :])[:, None]


def columns_in_reach(ctx: PositionContext, cache: Cache | None, layer: int | None) -> Tensor:
    """Indices in the text of the keys that a layer attends to, ``[key]``; its cache does not have the new ones yet."""
    evicting = layer_of(cache, layer)
    if evicting is not None:
        return evicting.columns(ctx.query_positions.shape[1], ctx.device)
    return torch.arange(ctx.key_positions.shape[1], device=ctx.device)


def written_alone(mask: Tensor | None, ctx: PositionContext, written: int) -> tuple[Tensor | None, PositionContext]:
    """The mask and positions of the first ``written`` keys, without the empty places of a cache of fixed size."""
    ctx = replace(ctx, key_positions=ctx.key_positions[:, :written])
    seen = None if mask is None else mask[..., :written]
    if seen is None or (seen.shape[-2] == 1 and bool(seen.all() if seen.dtype == torch.bool else not seen.any())):
        return None, ctx
    return seen, ctx
