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
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Cache

from hf_posenc.cache.eviction import EvictingLayer, evicting_layer
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
    tokens = CallTokens(length, past, keys, device, cache is not None, evicting, gaps)
    if forward.are_indices and not gaps and isinstance(past, int) and keys == past + length:
        memo = forward.memos.setdefault((device, keys), {})
        all_positions: Any = memo.get(KEYWORD)
        if all_positions is None:
            all_positions = memo[KEYWORD] = torch.arange(keys, device=device).unsqueeze(0)
        queries = all_positions.narrow(1, past, length)
        return PositionContext(queries, all_positions, causal, True, memo=memo, first=past)
    padding = None if forward.padding is None else forward.padding.to(device)
    positions = _query_positions(tokens, position_ids, padding, forward)
    positions, first = _as_one_row(positions, forward, past)
    key_positions, real = _key_positions(tokens, padding, positions, forward)
    contiguous = forward.contiguous and not gaps and (forward.keys is None or forward.keys.run_start is not None)
    memo_key = device if is_traced() else (device, keys)  # a lookup by length would specialize a traced graph to it
    memo = forward.memos.setdefault(memo_key, {})
    coordinates = None if forward.coordinates is None else forward.coordinates.to(device)
    text_keys = None if forward.text_keys is None else forward.text_keys.to(device)
    return PositionContext(
        positions, key_positions, causal, contiguous, real, memo, coordinates=coordinates, first=first,
        text_keys=text_keys,
    )  # fmt: skip


class CallTokens(NamedTuple):
    """Tokens of one attention call: ``length`` new ones after ``past`` cached ones, and ``keys`` that are attended to.

    If the layer evicts keys (``evicting``), there may be ``gaps`` between the remaining keys.
    """

    length: int
    past: int | Tensor
    keys: int
    device: torch.device
    cached: bool
    evicting: EvictingLayer | None
    gaps: bool

    @property
    def columns(self) -> Tensor:
        """Indices of the keys in the text, ``[key]``."""
        if self.evicting is not None and self.gaps:
            return self.evicting.columns(self.length, self.device)
        dropped = dropped_keys(self.past, self.length, self.keys)
        return torch.arange(dropped, dropped + self.keys, device=self.device)


def _query_positions(
    tokens: CallTokens, position_ids: Tensor | None, padding: Tensor | None, forward: ForwardContext
) -> Tensor:
    """Positions of the new tokens, ``[batch or 1, query]``; outside a forward pass by ``position_ids``, or counted."""
    if forward.positions is not None:
        return forward.positions.to(tokens.device)
    if position_ids is not None:
        return position_ids.to(tokens.device).long()
    if padding is not None:
        return (padding.cumsum(-1) - 1).clamp(min=0)[:, -tokens.length :]
    return (torch.arange(tokens.length, device=tokens.device) + tokens.past)[None]


def _key_positions(
    tokens: CallTokens, padding: Tensor | None, positions: Tensor, forward: ForwardContext
) -> tuple[Tensor, Tensor | None]:
    """Positions of the keys, ``[batch or 1, key]``, and which keys are real tokens; None if all are."""
    if not tokens.cached or forward.repositioned:
        return positions, padding
    columns = tokens.columns
    complete = not tokens.gaps and dropped_keys(tokens.past, tokens.length, tokens.keys) == 0
    real = padding if padding is None or complete else padding[:, columns]
    if forward.keys is not None:
        return forward.keys.at(columns), real
    inferred = inferred_positions(padding, positions, tokens.past, columns)
    if forward.contiguous:
        return inferred, real
    start = tokens.past if complete else len(columns) - tokens.length
    return _with_new_positions(inferred, positions, start), real


def dropped_keys(past: int | Tensor, length: int, keys: int) -> int:
    """Number of keys that a sliding-window layer has dropped; 0 for a static layer, which counts in a tensor."""
    return max(0, past + length - keys) if isinstance(past, int) else 0


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


def _with_new_positions(key_positions: Tensor, positions: Tensor, start: int | Tensor) -> Tensor:
    """Key positions, with the positions of the new tokens from column ``start`` on."""
    rows, length = max(key_positions.shape[0], positions.shape[0]), positions.shape[1]
    columns = torch.arange(length, device=positions.device) + start
    key_positions = key_positions.expand(rows, -1)
    return key_positions.index_copy(1, columns, positions.expand(rows, -1).to(key_positions.dtype))


def in_steps_of_one(positions: Tensor) -> bool:
    """Whether positions increase by one in every row; False while tracing, where values cannot be read."""
    if is_traced():
        return False
    if positions.shape[-1] == 1:
        return True
    return bool((positions[..., 1:] - positions[..., :-1] == 1).all())
