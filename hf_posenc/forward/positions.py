"""Positions of one attention call, from its cache and the `ForwardContext` of its forward pass.

An attention module gets the positions of its queries at most. The others are computed here:

* positions count real tokens: the cumulative sum of the 2-D mask if there is one, else the index in the sequence;
* cached keys keep the positions they were cached with (`hf_posenc.cache.key_positions`). If an attention module is
  called on its own, the last cached key is assumed to stand right before the new tokens.

``forward`` of the patched base model (`hf_posenc.forward.base_forward`) passes the `ForwardContext` as one keyword.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from hf_posenc.cache.eviction import evicting_layer
from hf_posenc.cache.key_layout import layer_at
from hf_posenc.cache.key_positions import CachedPositions, inferred_positions
from hf_posenc.cache.preallocated import PreallocatedLayer
from hf_posenc.core.context import PositionContext
from hf_posenc.core.tracing import is_traced

KEYWORD = "posenc_forward"


@dataclass(frozen=True)
class ForwardContext:
    """Metadata of one forward pass of the base model, for all its attention modules.

    Attributes:
        padding: the caller's 2-D mask as bool, ``[batch, key]``; None if all tokens are real.
        contiguous: whether positions run in steps of one without padding.
        coordinates: the caller's 3-D ``position_ids``, as ``[batch, query, axes]``.
        repositioned: whether the scheme changed the positions.
        keys: positions of all keys, cached ones included; None without a cache, or if no layer reads them.
        are_indices: whether positions are the indices of the tokens in the text; False while tracing.
        positions: positions of the new tokens, ``[batch or 1, query]``, moved by the scheme.
        weights: whether attention weights are requested, for modules that no keyword reaches.
        texts: number of each token's text, ``[batch or 1, query]``, if masks must separate packed texts; else None.
        text_keys: number of keys in each token's text, ``[batch or 1, query]``, for packed encoder rows; else None.
        cached: whether the base model got a KV cache that its attention modules must write to.
        caller_mask: whether the caller passed a mask ``[batch or 1, heads or 1, query, token]`` over the whole text.
        memos: values shared by layers on one device with the same number of keys.
        plans: plans of calls by device and cache state, then by scheme (`hf_posenc.forward.call_plan`). Plans refer to
            memos; inside a memo they would be a reference cycle.
    """

    padding: Tensor | None
    contiguous: bool
    coordinates: Tensor | None = None
    repositioned: bool = False
    keys: CachedPositions | None = None
    are_indices: bool = False
    caller_mask: bool = False
    positions: Tensor | None = None
    weights: bool = False
    texts: Tensor | None = None
    text_keys: Tensor | None = None
    cached: bool = False
    memos: dict[Hashable, dict[Hashable, object]] = field(default_factory=dict)
    plans: dict[Hashable, dict[Any, Any]] = field(default_factory=dict)


def context_of(
    query: Tensor,
    cache: Cache | None,
    layer: int | None,
    position_ids: Tensor | None,
    forward: ForwardContext,
    *,
    causal: bool,
    sizes: tuple[int | Tensor, int],
) -> PositionContext:
    """Positions of one attention call. Call it before the cache takes the new keys: a static cache counts in place.

    Args:
        query: ``[batch, heads, query, head_dim]``.
        cache: KV cache of self-attention, if any.
        layer: index of the layer in the cache.
        position_ids: ``[batch or 1, query]``, if the model passed them.
        forward: context of the forward pass.
        causal: whether the module is a decoder's.
        sizes: `past_and_keys` of the call.
    """
    length, device, (past, keys) = query.shape[2], query.device, sizes
    evicting = evicting_layer(cache, layer)
    gaps = evicting is not None and evicting.gaps
    if forward.are_indices and not gaps and isinstance(past, int) and keys == past + length:
        memo = forward.memos.setdefault((device, keys), {})
        all_positions: Any = memo.get(KEYWORD)
        if all_positions is None:
            all_positions = memo[KEYWORD] = torch.arange(keys, device=device).unsqueeze(0)
        queries = all_positions.narrow(1, past, length)
        return PositionContext(queries, all_positions, causal, True, memo=memo, first=past)
    padding = None if forward.padding is None else forward.padding.to(device)
    if forward.positions is not None:
        positions = forward.positions.to(device)
    elif position_ids is not None:
        positions = position_ids.to(device).long()
    else:
        positions = (torch.arange(length, device=device) + past)[None]
    positions, first = _as_one_row(positions, forward, past)
    key_positions, real = positions, padding
    if cache is not None and not forward.repositioned:
        # A layer with a sliding window has dropped keys. A static layer counts in a tensor, and has a place for each.
        dropped = max(0, past + length - keys) if isinstance(past, int) else 0
        columns = torch.arange(dropped, dropped + keys, device=device)
        if evicting is not None and gaps:
            columns = evicting.columns(length, device)
        complete = not gaps and dropped == 0
        key_positions, real = _key_positions(columns, past, complete, padding, positions, forward)
    contiguous = forward.contiguous and not gaps and (forward.keys is None or forward.keys.run_start is not None)
    memo_key = device if is_traced() else (device, keys)  # a lookup by length would specialize a traced graph to it
    memo = forward.memos.setdefault(memo_key, {})
    coordinates = None if forward.coordinates is None else forward.coordinates.to(device)
    text_keys = None if forward.text_keys is None else forward.text_keys.to(device)
    return PositionContext(
        positions, key_positions, causal, contiguous, real, memo, coordinates=coordinates, first=first,
        text_keys=text_keys,
    )  # fmt: skip


def _key_positions(
    columns: Tensor, past: int | Tensor, complete: bool, padding: Tensor | None, new: Tensor, forward: ForwardContext
) -> tuple[Tensor, Tensor | None]:
    """Positions of the keys, ``[batch or 1, key]``, and which keys are real tokens; None if all are.

    Args:
        columns: indices of the keys in the text, ``[key]``.
        past: number of tokens that the cache has seen.
        complete: whether no key of the text is missing.
        padding: true at real tokens, ``[batch, token]``.
        new: positions of the new tokens.
        forward: context of the forward pass.
    """
    real = padding if padding is None or complete else padding[:, columns]
    if forward.keys is not None:
        return forward.keys.at(columns), real
    inferred = inferred_positions(padding, new, past, columns)
    if forward.contiguous:
        return inferred, real
    rows, length = max(inferred.shape[0], new.shape[0]), new.shape[1]
    start = past if complete else len(columns) - length
    places = torch.arange(length, device=new.device) + start
    return inferred.expand(rows, -1).index_copy(1, places, new.expand(rows, -1).to(inferred.dtype)), real


def _as_one_row(positions: Tensor, forward: ForwardContext, past: int | Tensor) -> tuple[Tensor, int | None]:
    """Positions as one row if all rows are the same, and the first position if it is known without waiting."""
    if not forward.contiguous or positions.shape[1] == 0:
        return positions, None
    if is_traced():  # then the caller passed no positions, and they count on from the cache
        return positions, past if isinstance(past, int) else None
    if forward.keys is not None and forward.keys.run_start is not None and isinstance(past, int):
        return positions[:1], forward.keys.run_start + past
    rows = positions.shape[0]
    if positions.device.type != "cpu" or (rows > 1 and not torch.equal(positions, positions[:1].expand_as(positions))):
        return positions, None
    return positions[:1], int(positions[0, 0])


def past_and_keys(cache: Cache | None, layer: int | None, length: int) -> tuple[int | Tensor, int]:
    """Number of tokens that the cache has seen, and number of keys that its next update will return."""
    if cache is None:
        return 0, length
    cache_layer = layer_at(cache, layer)
    if isinstance(cache_layer, PreallocatedLayer) and cache_layer.is_initialized:  # saves eight calls of its methods
        past = cache_layer.keys.shape[-2] if cache_layer.keys.numel() > 0 else 0
        return past, past + length
    keys, _ = cache.get_mask_sizes(length, layer)
    past = cache.get_seq_length(layer)
    # A static cache counts in a tensor that its update changes in place: copy the current value.
    return (past.clone() if isinstance(past, Tensor) else past), keys


def in_steps_of_one(positions: Tensor) -> bool:
    """Whether positions increase by one in every row; False while tracing, where values cannot be read."""
    if is_traced():
        return False
    if positions.shape[-1] == 1:
        return True
    return bool((positions[..., 1:] - positions[..., :-1] == 1).all())
