"""Stages of a call of the base model: check it, prepare its KV cache, and hand a `ForwardContext` to every layer.

They see arguments that attention modules do not: the caller's 2-D mask, positions with gaps or several axes, and the
cache while it is empty. Each stage takes a `ForwardCall` and returns the next one. The order of the stages matters:
positions depend on the padding, packed texts on the positions, and packed texts decide whether a cache is made.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.cache.eviction import check_ascending
from hf_posenc.cache.key_positions import CachedPositions, reads_keys, record_positions
from hf_posenc.cache.prepare import prepare_cache
from hf_posenc.cache.provenance import ENTRY, self_attention_cache
from hf_posenc.cache.validate_cache import check_layers
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import NeedsWholeText
from hf_posenc.forward.attention_masks import check_dropped_keys, check_mask, check_shown_keys, with_padding
from hf_posenc.forward.current_forward import USES_LOOKUP, counts_columns, set_current_forward
from hf_posenc.forward.engine_backend import context_parallel_active, refuse_context_parallel
from hf_posenc.forward.forward_call import ForwardCall, host_keywords, parse_call
from hf_posenc.forward.host_calls import paged_cache
from hf_posenc.forward.paged_support import check_continuous_batch, mark_pages
from hf_posenc.forward.position_ids import COUNTS_FROM_ZERO, with_coordinates, with_positions
from hf_posenc.forward.positions import ForwardContext, in_steps_of_one
from hf_posenc.forward.texts_in_rows import with_packed_texts, with_text_lengths
from hf_posenc.forward.validate_inputs import check_call, check_position_ids
from hf_posenc.schemes.base import Scheme, implements


def prepare_forward(base: nn.Module, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Run the stages of a call of the base model, and return the keyword arguments for its own ``forward``.

    Raises:
        InvalidInput: there are no tokens, an id, position or mask value is invalid, a row is all padding, or the cache
            does not fit.
        MaskMismatch: the shape of the mask does not match the tokens.
        NeedsWholeText: the call continues a text whose positions would all change.
    """
    call = validate_call(parse_call(base, args, kwargs))
    call = with_coordinates(call)
    call = with_padding(call)
    call = with_positions(call)
    call = with_packed_texts(call)
    call = with_text_lengths(call)
    call = with_moved_positions(call)
    call = with_cache(call)
    forward = forward_context(call, record_key_positions(call))
    if base.__dict__.get(USES_LOOKUP) or (counts_columns(base) and not is_traced()):
        set_current_forward(base, forward)
    return host_keywords(call, forward)


def validate_call(call: ForwardCall) -> ForwardCall:
    """Check the arguments of a call, and return it unchanged.

    Raises:
        InvalidInput: a position or mask value is invalid.
        MaskMismatch: the shape of the mask does not match the tokens.
        UnknownKeyword: a keyword may change attention, but is not supported.
    """
    cache = call.own_cache
    if not call.paged:
        check_call(call.base, call.keywords, call.schemes[0], causal=call.causal)
    check_layers(cache, call.length, call.schemes, call.attentions)
    check_position_ids(call.position_ids, call.tokens)
    if call.paged:  # its mask is transformers' own, over the keys of all requests
        check_continuous_batch(call.base)
    elif call.mask is not None:
        check_mask(call.mask, call.tokens, call.schemes[0].geometry.heads, cache)
        if call.masks_by_kind is None:
            check_dropped_keys(call.mask, call.length, cache)
        if call.causal:
            masks = [call.mask] if call.masks_by_kind is None else list(call.masks_by_kind.values())
            for mask, scheme in product(masks, call.schemes):
                if isinstance(mask, Tensor):
                    check_shown_keys(mask, call.length, scheme, cache)
    return call


def with_moved_positions(call: ForwardCall) -> ForwardCall:
    """The call with the positions that its scheme moves. A host with a position table gets the moved positions, too.

    Raises:
        NeedsWholeText: the positions of cached tokens would change.
    """
    scheme = call.schemes[0]
    if not moves_positions(scheme):
        return call
    before, past = call.positions, call.past
    after = scheme.reposition(before, training=call.base.training)
    changes = after is not before or scheme.needs_whole_text
    if changes and not is_traced() and int(past) > 0:  # a static cache counts in a tensor
        raise NeedsWholeText(
            f"Positions of scheme {scheme.shown_name!r} depend on the length of the text, and {int(past)} tokens were "
            "cached at another length. Pass use_cache=False, or options that do not depend on the length."
        )
    if after is before:
        return call
    if context_parallel_active():
        refuse_context_parallel(scheme)
    if scheme.geometry.table is None:
        return replace(call, moved=after)
    mask = call.mask
    if mask is None:  # without a mask, transformers reads gaps in positions as borders of packed texts
        mask = torch.ones(before.shape, dtype=torch.long, device=before.device).expand(call.tokens.shape[0], -1)
    return replace(call, moved=after, position_ids=after, mask=mask)


def moves_positions(scheme: Scheme) -> bool:
    """Whether a scheme may change the positions of tokens."""
    return implements(scheme, "reposition") or implements(scheme, "needs_whole_text")


def with_cache(call: ForwardCall) -> ForwardCall:
    """The call with its KV cache, checked and marked. The cache is made here if the caller passed none.

    Raises:
        InvalidInput: the cache does not fit the call, or holds keys of another scheme.
    """
    pages = paged_cache(call.keywords)
    if pages is not None:
        mark_pages(pages, vars(call.base)[ENTRY])
    cache = prepare_cache(
        call.base,
        call.cache,
        call.attentions,
        use_cache=call.use_cache,
        encoder=call.keywords.get("encoder_hidden_states") is not None,
        tokens=call.tokens,
        padding=call.padding,
        positions=call.stated_positions,
    )
    own = self_attention_cache(cache)
    if own is not None and isinstance(call.counts_from_zero, bool):
        setattr(own, COUNTS_FROM_ZERO, call.counts_from_zero)
    return call if cache is call.cache else replace(call, cache=cache)


def record_key_positions(call: ForwardCall) -> CachedPositions | None:
    """Record the new positions in the cache, and return all key positions; None without a cache or a reader."""
    cache, padding = call.own_cache, call.padding
    if cache is None or not any(map(reads_keys, call.schemes)):
        return None
    keys = record_positions(cache, call.positions, padding, count_on=call.stated_positions is None)
    if keys.positions is not None:
        check_ascending(cache, keys.positions, call.length, padding)
    return keys


def forward_context(call: ForwardCall, keys: CachedPositions | None) -> ForwardContext:
    """Context of the call for all attention modules."""
    contiguous = call.unmasked and not call.paged and call.moved is None
    if contiguous and call.numbered_by_caller:
        contiguous = in_steps_of_one(call.position_ids)  # type: ignore[arg-type]  # set by the caller
    # `generate` passes the positions that the model would count itself.
    from_zero = call.position_ids is None if keys is None else keys.run_start == 0
    are_indices = contiguous and from_zero and call.coordinates is None and not is_traced()
    weights = call.keywords.get("output_attentions", getattr(call.base.config, "output_attentions", False))
    return ForwardContext(
        padding=call.padding,
        contiguous=contiguous,
        coordinates=call.coordinates,
        repositioned=call.moved is not None,
        keys=keys,
        are_indices=are_indices,
        caller_mask=call.masks_by_kind is None and isinstance(call.mask, Tensor) and call.mask.ndim == 4,
        positions=call.positions,
        weights=bool(weights),
        texts=call.texts,
        text_keys=call.text_keys,
        cached=call.cache is not None and call.use_cache is not False,
    )
