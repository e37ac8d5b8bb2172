"""Positions of one attention call, read off its cache and what was announced of it.

Only query positions ever reach an attention module, and only sometimes. What is missing is worked out here:

* positions count real tokens: the cumulative sum of the 2-D mask where there is one, else the place in the sequence;
* keys of the cache stand where the newest query's offset puts them, so that a caller's own ``position_ids`` shift both.

A pre-hook on the base model (`hf_posenc.patches.announcing`) carries what the model knows and its attention modules do
not, as one keyword.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from transformers.cache_utils import Cache, EncoderDecoderCache

from hf_posenc.patches.evicting import ForgettingLayer, layer_of
from hf_posenc.patches.packing import grows
from hf_posenc.positions import PositionContext

KEYWORD = "posenc_forward"


@dataclass(frozen=True)
class Forward:
    """What one forward pass of the base model tells all its attention modules.

    Attributes:
        padding: the caller's 2-D mask as bool, ``[batch, key]``; None where all tokens are real.
        contiguous: positions run in steps of one and nothing is padded.
        coordinates: the caller's 3-D ``position_ids``, as ``[batch, query, axes]``.
        moved: where the scheme has put the tokens, ``[batch or 1, query]``; None where they stand as they come.
        memos: on each device one, shared by the layers there.
        contexts: what layers know of where tokens stand, most of them the same. Not in the memo, which they hold: they
            would then wait for the garbage collector.
    """

    padding: Tensor | None
    contiguous: bool
    coordinates: Tensor | None = None
    moved: Tensor | None = None
    memos: dict[torch.device, dict[Hashable, object]] = field(default_factory=dict)
    contexts: dict[Hashable, PositionContext] = field(default_factory=dict)


def context_of(
    query: Tensor,
    cache: Cache | None,
    layer: int | None,
    position_ids: Tensor | None,
    told: Forward | None,
    *,
    causal: bool,
) -> PositionContext:
    """Positions of one attention call. Call it before the cache takes the new keys: a static cache counts in place.

    Args:
        query: ``[batch, heads, query, head_dim]``.
        cache: the layer's cache, if any.
        layer: index of the layer in the cache.
        position_ids: ``[batch or 1, query]`` if the model passed them.
        told: what `announce` passed down; None when the attention module is called on its own.
        causal: whether the module is a decoder's.
    """
    length, device = query.shape[2], query.device
    if told is None:
        told = Forward(None, position_ids is None or in_steps_of_one(position_ids))
    past, keys = past_and_keys(cache, layer, length)
    forgetting = layer_of(cache, layer)
    make = partial(_context, length, device, past, keys, cache is None, forgetting, position_ids, told, causal)
    if isinstance(past, Tensor):
        return make()
    state = None if forgetting is None else (forgetting.first, forgetting.last, forgetting.pads, forgetting.total)
    key = (device, past, keys, causal, cache is None, state)
    if key not in told.contexts:
        told.contexts[key] = make()
    return told.contexts[key]


def _context(
    length: int,
    device: torch.device,
    past: int | Tensor,
    keys: int,
    uncached: bool,
    forgetting: ForgettingLayer | None,
    position_ids: Tensor | None,
    told: Forward,
    causal: bool,
) -> PositionContext:
    index = torch.arange(length, device=device) + past
    padding = None if told.padding is None else told.padding.to(device)
    if told.moved is not None:
        positions = told.moved.to(device)
    elif position_ids is not None:
        positions = position_ids.to(device).long()
    elif padding is not None:
        positions = (padding.cumsum(-1) - 1).clamp(min=0)[:, -length:]
    else:
        positions = index[None]
    first = None
    if told.contiguous and torch.compiler.is_compiling():
        first = past if isinstance(past, int) else None  # then positions are the model's own
    elif told.contiguous and device.type == "cpu" and length > 0:
        positions, first = one_row(positions)
    real = padding
    complete = forgetting is None or not forgetting.gaps
    if uncached or told.moved is not None:
        key_positions = positions
    else:
        columns = torch.arange(keys, device=device)
        if forgetting is not None and not complete:
            columns = forgetting.columns(length, device)
            real = None if real is None else real[:, columns]
        key_positions = _numbers(padding, columns) + (positions[:, -1:] - _numbers(padding, index[-1:]))
        if not told.contiguous:  # what is new stands where the caller says; only of older keys it has to be inferred
            key_positions = _with_own(key_positions, positions, past if complete else key_positions.shape[1] - length)
    memo = told.memos.setdefault(device, {})
    coordinates = None if told.coordinates is None else told.coordinates.to(device)
    return PositionContext(
        positions, key_positions, causal, told.contiguous and complete, real, memo, coordinates=coordinates, first=first
    )


def one_row(positions: Tensor) -> tuple[Tensor, int | None]:
    """Positions ``[batch or 1, query]`` as one row if all samples have the same, and then the first of them."""
    if len(positions) > 1 and not torch.equal(positions, positions[:1].expand_as(positions)):
        return positions, None
    return positions[:1], int(positions[0, 0])


def says_nothing(mask: object, cache: Cache | None, layer: int | None, told: Forward | None) -> bool:
    """Whether a mask is of causality alone: while tracing, transformers makes one where it would have made none."""
    if mask is None or told is None or not told.contiguous or not torch.compiler.is_compiling():
        return False
    return cache is None or (grows(cache, layer) and cache.get_seq_length(layer) == 0)


def past_and_keys(cache: Cache | None, layer: int | None, length: int) -> tuple[int | Tensor, int]:
    """Tokens the cache holds before this call, and keys it will return after it."""
    if cache is None:
        return 0, length
    keys, _ = cache.get_mask_sizes(length, layer)
    past = cache.get_seq_length(layer)
    # A static cache counts in a tensor that its update changes in place: take the value as it is now.
    return (past.clone() if isinstance(past, Tensor) else past), keys


def self_attention_cache(cache: Cache | None) -> Cache | None:
    """The part of an encoder-decoder cache that belongs to self-attention; other caches as they are."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def _numbers(padding: Tensor | None, columns: Tensor) -> Tensor:
    """How many tokens stand before that in each column, padding left out, ``[batch or 1, column]``."""
    if padding is None:
        return columns[None]
    numbered = padding.long().cumsum(-1) - 1
    written = columns.clamp(max=padding.shape[1] - 1)  # a static cache is longer than what is written in it
    return numbered[:, written] + (columns - written)


def _with_own(key_positions: Tensor, positions: Tensor, start: int | Tensor) -> Tensor:
    """Positions of the new keys, from column ``start`` on, as their queries have them."""
    rows, length = max(len(key_positions), len(positions)), positions.shape[1]
    columns = torch.arange(length, device=positions.device) + start
    everyone = key_positions.expand(rows, -1).clone()
    return everyone.index_copy(1, columns, positions.expand(rows, -1).to(everyone.dtype))


def in_steps_of_one(positions: Tensor) -> bool:
    """Whether every row counts on by one; a trace cannot know."""
    if torch.compiler.is_compiling():
        return False  # a value cannot be looked at while tracing
    if positions.shape[-1] == 1:
        return True
    return bool((positions[..., 1:] - positions[..., :-1] == 1).all())
