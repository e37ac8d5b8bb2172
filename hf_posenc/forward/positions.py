"""Positions of one attention call, from its cache and the `ForwardContext` of its forward pass.

Only query positions ever reach an attention module, and only sometimes. What is missing is worked out here:

* positions count real tokens: the cumulative sum of the 2-D mask where there is one, else the index in the sequence;
* cached keys keep the positions they were cached with (`hf_posenc.cache.key_positions`). Where an attention
  module is called on its own, they are taken to end right before the new tokens.

The forward pre-hook of the base model (`hf_posenc.forward.forward_hook`) passes the `ForwardContext` as one keyword.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Cache

from hf_posenc.cache.eviction import EvictingLayer, layer_of
from hf_posenc.cache.key_positions import CachedPositions, inferred_positions
from hf_posenc.cache.preallocated import PreallocatedLayer
from hf_posenc.core.context import PositionContext
from hf_posenc.core.tracing import is_traced

KEYWORD = "posenc_forward"


@dataclass(frozen=True)
class ForwardContext:
    """Metadata of one forward pass of the base model, for all its attention modules.

    Attributes:
        padding: the caller's 2-D mask as bool, ``[batch, key]``; None where all tokens are real.
        contiguous: positions run in steps of one and nothing is padded.
        coordinates: the caller's 3-D ``position_ids``, as ``[batch, query, axes]``.
        moved: positions as the scheme changes them, ``[batch or 1, query]``; None where it does not.
        keys: positions of all keys, cached ones included; None without a cache, or where no layer reads them.
        counted: whether positions are the model's own, counted on from the tokens in the cache; False while tracing.
        positions: of the new tokens, ``[batch or 1, query]``, as the scheme changes them.
        weights: whether attention weights are asked for; for modules that no keyword reaches.
        texts: number of the text of every token, ``[batch or 1, query]``, that masks have to keep apart; else None.
        text_keys: number of keys of each token's text, ``[batch or 1, query]``, in rows of an encoder; else None.
        cached: whether the base model was given a KV cache, which its attention modules have to get.
        own_mask: whether the caller made the mask, ``[batch or 1, heads or 1, query, token]``, over all of the text.
        memos: shared by the layers on a device that have the same number of keys.
        plans: what layers with the same scheme, device and cache state share (`hf_posenc.forward.call_plan`). Not in a
            memo, which they hold: they would then wait for the garbage collector.
    """

    padding: Tensor | None
    contiguous: bool
    coordinates: Tensor | None = None
    moved: Tensor | None = None
    keys: CachedPositions | None = None
    counted: bool = False
    own_mask: bool = False
    positions: Tensor | None = None
    weights: bool = False
    texts: Tensor | None = None
    text_keys: Tensor | None = None
    cached: bool = False
    memos: dict[Hashable, dict[Hashable, object]] = field(default_factory=dict)
    plans: dict[Hashable, Any] = field(default_factory=dict)


def context_of(
    query: Tensor,
    cache: Cache | None,
    layer: int | None,
    position_ids: Tensor | None,
    forward: ForwardContext,
    *,
    causal: bool,
    sizes: tuple[int | Tensor, int] | None = None,
) -> PositionContext:
    """Positions of one attention call. Call it before the cache takes the new keys: a static cache counts in place.

    Args:
        query: ``[batch, heads, query, head_dim]``.
        cache: the layer's cache, if any.
        layer: index of the layer in the cache.
        position_ids: ``[batch or 1, query]`` if the model passed them.
        forward: of the forward pass.
        causal: whether the module is a decoder's.
        sizes: `past_and_keys` of the call, if known.
    """
    length, device = query.shape[2], query.device
    past, keys = past_and_keys(cache, layer, length) if sizes is None else sizes
    evicting = layer_of(cache, layer)
    gaps = evicting is not None and evicting.gaps
    tokens = CallTokens(length, past, keys, device, cache is not None, evicting, gaps)
    if forward.counted and not gaps and isinstance(past, int) and keys == past + length:  # position is index
        memo = forward.memos.setdefault((device, keys), {})
        everyone: Any = memo.get(KEYWORD)
        if everyone is None:
            everyone = memo[KEYWORD] = torch.arange(keys, device=device).unsqueeze(0)
        return PositionContext(everyone.narrow(1, past, length), everyone, causal, True, memo=memo, first=past)
    padding = None if forward.padding is None else forward.padding.to(device)
    positions = _query_positions(tokens, position_ids, padding, forward)
    positions, first = _as_one_row(positions, forward, past, contiguous=forward.contiguous)
    key_positions, real = _key_positions(tokens, padding, positions, forward)
    contiguous = forward.contiguous and not gaps and (forward.keys is None or forward.keys.run is not None)
    memo_key = device if is_traced() else (device, keys)  # looking a length up would tie a graph to it
    memo = forward.memos.setdefault(memo_key, {})
    coordinates = None if forward.coordinates is None else forward.coordinates.to(device)
    text_keys = None if forward.text_keys is None else forward.text_keys.to(device)
    return PositionContext(
        positions, key_positions, causal, contiguous, real, memo, coordinates=coordinates, first=first,
        text_keys=text_keys,
    )  # fmt: skip


class CallTokens(NamedTuple):
    """The tokens of one attention call: ``length`` new ones behind ``past``, and ``keys`` that the queries may see.

    Where a layer evicts keys (``evicting``), there may be ``gaps`` between those that are left.
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
        """Indices in the text of the keys, ``[key]``."""
        if self.evicting is not None and self.gaps:
            return self.evicting.columns(self.length, self.device)
        dropped = slid_out(self.past, self.length, self.keys)
        return torch.arange(dropped, dropped + self.keys, device=self.device)


def _query_positions(
    tokens: CallTokens, position_ids: Tensor | None, padding: Tensor | None, forward: ForwardContext
) -> Tensor:
    """Positions of the new tokens, ``[batch or 1, query]``: the scheme's, the model's, or counted here."""
    if forward.moved is not None:
        return forward.moved.to(tokens.device)
    if position_ids is not None:
        return position_ids.to(tokens.device).long()
    if forward.positions is not None:  # the model hands its layers none, such as one with several axes
        return forward.positions.to(tokens.device)
    if padding is not None:
        return (padding.cumsum(-1) - 1).clamp(min=0)[:, -tokens.length :]
    return (torch.arange(tokens.length, device=tokens.device) + tokens.past)[None]


def _key_positions(
    tokens: CallTokens, padding: Tensor | None, positions: Tensor, forward: ForwardContext
) -> tuple[Tensor, Tensor | None]:
    """Positions of the keys, ``[batch or 1, key]``, and which of them are real tokens; None where all are."""
    if not tokens.cached or forward.moved is not None:
        return positions, padding
    columns = tokens.columns
    complete = not tokens.gaps and slid_out(tokens.past, tokens.length, tokens.keys) == 0
    real = padding if padding is None or complete else padding[:, columns]
    if forward.keys is not None:
        return forward.keys.at(columns), real
    known = inferred_positions(padding, positions, tokens.past, columns)
    if forward.contiguous:
        return known, real
    start = tokens.past if complete else len(columns) - tokens.length
    return _with_own(known, positions, start), real  # what is new stands where the caller says


def slid_out(past: int | Tensor, length: int, keys: int) -> int:
    """How many keys a layer with a sliding window has dropped; a static one counts in a tensor, and drops none."""
    return max(0, past + length - keys) if isinstance(past, int) else 0


def _as_one_row(
    positions: Tensor, forward: ForwardContext, past: int | Tensor, *, contiguous: bool
) -> tuple[Tensor, int | None]:
    """Positions ``[batch or 1, query]``, as one row where all are the same, and then the first where it is known."""
    if not contiguous or positions.shape[1] == 0:
        return positions, None
    if is_traced():  # then positions are the model's own
        return positions, past if isinstance(past, int) else None
    if forward.keys is not None and forward.keys.run is not None and isinstance(past, int):
        return positions[:1], forward.keys.run + past
    rows = positions.shape[0]
    if positions.device.type != "cpu" or (rows > 1 and not torch.equal(positions, positions[:1].expand_as(positions))):
        return positions, None
    return positions[:1], int(positions[0, 0])


def past_and_keys(cache: Cache | None, layer: int | None, length: int) -> tuple[int | Tensor, int]:
    """Tokens the cache has seen before this call, and keys it will return after it: the newest, where it drops some."""
    if cache is None:
        return 0, length
    held = cache.layers[layer] if layer is not None and layer < len(cache.layers) else None
    if isinstance(held, PreallocatedLayer) and held.is_initialized:  # as it would say itself, in eight calls
        past = held.keys.shape[-2] if held.keys.numel() > 0 else 0
        return past, past + length
    keys, _ = cache.get_mask_sizes(length, layer)
    past = cache.get_seq_length(layer)
    # A static cache counts in a tensor that its update changes in place: take the value as it is now.
    return (past.clone() if isinstance(past, Tensor) else past), keys


def _with_own(key_positions: Tensor, positions: Tensor, start: int | Tensor) -> Tensor:
    """Positions of the new keys, from column ``start`` on, as their queries have them."""
    rows, length = max(key_positions.shape[0], positions.shape[0]), positions.shape[1]
    columns = torch.arange(length, device=positions.device) + start
    everyone = key_positions.expand(rows, -1).clone()
    return everyone.index_copy(1, columns, positions.expand(rows, -1).to(everyone.dtype))


def in_steps_of_one(positions: Tensor) -> bool:
    """Whether every row counts on by one; a trace cannot know."""
    if is_traced():
        return False  # a value cannot be looked at while tracing
    if positions.shape[-1] == 1:
        return True
    return bool((positions[..., 1:] - positions[..., :-1] == 1).all())
