"""Attention mask for the keys that a layer attends to, if its cache has dropped keys or has unwritten places.

transformers makes one mask for all layers of a kind. This mask does not fit a layer that evicts keys
(`hf_posenc.cache.eviction`), nor a layer that keeps all keys while others evict. Their masks are made here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_posenc.cache.eviction import EVICTS, EvictingLayer, evicting_layer
from hf_posenc.cache.key_layout import is_growing, layer_at
from hf_posenc.core.context import PositionContext
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import BackendCannotCarry
from hf_posenc.forward.engine_backend import ENGINE_BACKENDS
from hf_posenc.forward.layer import PatchedLayer
from hf_posenc.forward.positions import ForwardContext

if TYPE_CHECKING:
    from transformers import Cache


def mask_in_reach(
    mask: Any, ctx: PositionContext, cache: Cache | None, layer: PatchedLayer, forward: ForwardContext
) -> tuple[Any, PositionContext]:
    """Mask and positions of the keys that a layer can attend to; the mask is None if causality alone hides keys."""
    index, length, keys = layer.layer_idx, ctx.query_positions.shape[1], ctx.key_positions.shape[1]
    if mask is not None and layer.backend == "sdpa" and is_causal_alone(cache, layer, forward):
        mask = None
    if mask is None and ctx.causal and 1 < length < keys:
        # Prefill of an empty static cache: transformers passes no mask, and places after the queries are unwritten.
        ctx = replace(ctx, key_positions=ctx.key_positions[:, :length])
    if forward.caller_mask:
        return columns_of_held_keys(mask, cache, index, length), ctx
    if mask is not None:
        misfits = isinstance(mask, Tensor) and 1 < mask.shape[-1] < keys  # made for layers that dropped keys
    else:
        misfits = cache is not None and EVICTS in cache.__dict__ and keeps_unseen_keys(layer, keys, cache)
    evicting = None if ctx.contiguous else evicting_layer(cache, index)
    if (evicting is not None and evicting.gaps) or misfits:
        columns = torch.arange(keys, device=ctx.device) if evicting is None else evicting.columns(length, ctx.device)
        return visible_keys(ctx, columns, layer), ctx
    return mask, ctx


def is_causal_alone(cache: Cache | None, layer: PatchedLayer, forward: ForwardContext) -> bool:
    """Whether a mask hides later keys alone, known without reading it.

    While tracing, transformers makes such a mask for calls that need none. Masks of windows and chunks hide more.
    """
    if not forward.contiguous or not is_traced() or layer.window is not None or layer.chunk is not None:
        return False
    index = layer.layer_idx
    return cache is None or (is_growing(cache, index) and cache.get_seq_length(index) == 0)


def columns_of_held_keys(mask: Tensor | None, cache: Cache | None, layer: int | None, length: int) -> Tensor | None:
    """Columns of a caller's mask ``[batch or 1, heads or 1, query, token]`` for the keys that a layer still holds.

    Args:
        mask: covers all tokens of the text, or the keys of this layer alone.
        cache: KV cache before it takes the new tokens.
        layer: index of the layer in the cache.
        length: number of new tokens.
    """
    cache_layer = layer_at(cache, layer)
    if mask is None or cache_layer is None:
        return mask
    if isinstance(cache_layer, EvictingLayer):
        return mask[..., cache_layer.columns(length, mask.device)] if cache_layer.gaps else mask
    keys = cache_layer.get_mask_sizes(length)[0] if cache_layer.is_sliding else mask.shape[-1]
    return mask[..., :keys]  # a static layer has a place for each token of its window until it drops a key


def keeps_unseen_keys(layer: PatchedLayer, keys: int, cache: Cache) -> bool:
    """Whether a layer kept keys outside its window or chunk while others dropped keys, for which masks are made."""
    dropped = any(isinstance(other, EvictingLayer) and other.gaps for other in cache.layers)
    return dropped and (layer.chunk is not None or (layer.window is not None and keys > layer.window))


def visible_keys(ctx: PositionContext, columns: Tensor, layer: PatchedLayer) -> Tensor | None:
    """Mask of visible keys, bool ``[batch or 1, 1, query, key]``; None for one query that sees every key.

    Args:
        ctx: positions of the queries and of the keys in reach.
        columns: indices of these keys in the text, ``[key]``; the last ones are the queries.
        layer: attention module, with its backend, and its window or chunk.

    Raises:
        BackendCannotCarry: the backend does not accept such a mask.
    """
    length = ctx.query_positions.shape[1]
    if length == 1 and ctx.real_keys is None and layer.window is None and layer.chunk is None:
        return None
    if layer.backend not in ENGINE_BACKENDS:
        raise BackendCannotCarry(
            f"The attention backend {layer.backend!r} can continue from a cache that dropped keys only token by token. "
            'Use model.set_attn_implementation("sdpa").'
        )
    seen = ctx.distance() >= 0
    if layer.window is not None:
        seen = seen & (columns[-length:, None] - columns < layer.window)
    if layer.chunk is not None:
        queries, keys = columns[None, -length:], columns[None]
        if ctx.real_keys is not None:  # chunks count real tokens
            queries, keys = ctx.query_positions, ctx.key_positions
        seen = seen & (queries[:, :, None] // layer.chunk == keys[:, None, :] // layer.chunk)
    return (seen if ctx.real_keys is None else seen & ctx.real_keys[:, None, :])[:, None]


def without_unwritten_keys(
    mask: Tensor | None, ctx: PositionContext, written: int
) -> tuple[Tensor | None, PositionContext]:
    """Mask and positions of the first ``written`` keys, without the empty places of a static cache."""
    ctx = replace(ctx, key_positions=ctx.key_positions[:, :written])
    seen = None if mask is None else mask[..., :written]
    if seen is None or (seen.shape[-2] == 1 and bool(seen.all() if seen.dtype == torch.bool else not seen.any())):
        return None, ctx
    return seen, ctx
