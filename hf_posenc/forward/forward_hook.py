"""Forward pre-hook of the base model: check the call, prepare its KV cache, and hand a `ForwardContext` to every layer.

The hook sees what attention modules do not: the caller's 2-D mask, positions with gaps or several axes, and the cache
while it is empty. Each stage takes a `ForwardCall` and returns the next. Their order matters: positions are read with
the padding, texts in a row with the positions, and the cache is made once it is known that texts are not to be cached.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.cache.key_positions import CachedPositions, reads_keys
from hf_posenc.cache.prepare import prepare_cache, record_positions
from hf_posenc.cache.provenance import ENTRY, check_own_keys, self_attention_cache
from hf_posenc.cache.validate_cache import check_layers
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import NeedsWholeText
from hf_posenc.forward.attention_masks import check_held_keys, check_mask, check_shown_keys, padded
from hf_posenc.forward.current_forward import LOOKED_UP, announce, counts_columns
from hf_posenc.forward.engine_backend import context_parallel_active, refuse_context_parallel
from hf_posenc.forward.forward_call import ForwardCall, host_keywords, parsed
from hf_posenc.forward.host_calls import paged_cache
from hf_posenc.forward.paged_support import check_continuous_batch, mark_pages
from hf_posenc.forward.position_ids import FROM_ZERO, numbered, on_axes
from hf_posenc.forward.positions import ForwardContext, in_steps_of_one
from hf_posenc.forward.texts_in_rows import divided
from hf_posenc.forward.validate_inputs import check_call, check_position_ids
from hf_posenc.schemes.base import Scheme, implements


def prepare_forward(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Forward pre-hook of the base model: its stages, one after the other.

    Raises:
        InvalidInput: no tokens; ids, positions or mask values that cannot be; a row of padding alone; or a cache that
            does not fit.
        MaskMismatch: a mask has not the shape of the tokens it should mask.
        NeedsWholeText: a text is to be continued whose positions would all change.
    """
    call = validated(parsed(module, args, kwargs))
    call = numbered(padded(on_axes(call)))
    call = moved(divided(call))
    call = cached(call)
    forward = context_of_call(call, recorded(call))
    if module.__dict__.get(LOOKED_UP) or (counts_columns(module) and not is_traced()):
        announce(module, forward)
    return (), host_keywords(call, forward)


def validated(call: ForwardCall) -> ForwardCall:
    """The same call, once nothing in it is wrong.

    Raises:
        InvalidInput: positions or mask values cannot be.
        MaskMismatch: the mask has not the shape of the tokens it should mask.
        UnknownKeyword: a keyword may change attention, and is not read.
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
            check_held_keys(call.mask, call.length, cache)
        for mask in (call.masks_by_kind or {"": call.mask}).values() if call.causal else ():
            for scheme in call.schemes if isinstance(mask, Tensor) else ():
                check_shown_keys(mask, call.length, scheme, cache)
    return call


def moved(call: ForwardCall) -> ForwardCall:
    """The call with positions as its scheme moves them; the host gets them, too, where it looks up a table by them.

    Raises:
        NeedsWholeText: tokens are cached whose positions would change.
    """
    scheme = call.schemes[0]
    if not moves_positions(scheme):
        return call
    before, past = call.positions, call.past
    after = scheme.reposition(before, training=call.base.training)
    changes = after is not before or scheme.needs_whole_text
    if changes and not is_traced() and int(past) > 0:  # a static cache counts in a tensor
        raise NeedsWholeText(
            f"Scheme {scheme.shown_name!r} gives positions by the length of the text, and {int(past)} tokens "
            "were cached at another length. Pass use_cache=False, or options that do not depend on the length."
        )
    if after is before:
        return call
    if context_parallel_active():
        refuse_context_parallel(scheme)
    if scheme.geometry.table is None:
        return replace(call, moved=after)
    mask = call.mask
    if mask is None:  # without one, transformers takes the gaps of moved positions for packed texts
        mask = torch.ones(before.shape, dtype=torch.long, device=before.device).expand(call.tokens.shape[0], -1)
    return replace(call, moved=after, position_ids=after, mask=mask)


def moves_positions(scheme: Scheme) -> bool:
    """Whether a scheme may change where tokens stand."""
    return implements(scheme, "reposition") or implements(scheme, "needs_whole_text")


def cached(call: ForwardCall) -> ForwardCall:
    """The call with its KV cache, checked and marked; made where the caller passed none.

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
        positions=call.new_positions,
    )
    own = self_attention_cache(cache)
    if own is not None and isinstance(call.from_zero, bool):
        setattr(own, FROM_ZERO, call.from_zero)
    if any(scheme.caches_one_key for scheme in call.schemes):
        check_own_keys(own)
    return call if cache is call.cache else replace(call, cache=cache)


def recorded(call: ForwardCall) -> CachedPositions | None:
    """Positions of all keys, recorded in the cache of the call; None without one, or where no layer reads them."""
    own = call.own_cache
    if own is None or not any(map(reads_keys, call.schemes)):
        return None
    return record_positions(own, call.tokens, call.new_positions, call.padding)


def context_of_call(call: ForwardCall, keys: CachedPositions | None) -> ForwardContext:
    """What every attention module is told of the call."""
    contiguous = call.unmasked and not call.paged and call.moved is None
    if contiguous and call.numbered:
        contiguous = in_steps_of_one(call.position_ids)  # type: ignore[arg-type]  # they are given
    own = call.position_ids is None if keys is None else keys.run == 0  # `generate` passes the model's own numbers
    counted = contiguous and own and call.coordinates is None and not is_traced()
    weights = call.keywords.get("output_attentions", getattr(call.base.config, "output_attentions", False))
    return ForwardContext(
        padding=call.padding,
        contiguous=contiguous,
        coordinates=call.coordinates,
        moved=call.moved,
        keys=keys,
        counted=counted,
        own_mask=call.masks_by_kind is None and isinstance(call.mask, Tensor) and call.mask.ndim == 4,
        positions=call.positions,
        weights=bool(weights),
        texts=call.texts,
        text_keys=call.text_keys,
        cached=call.own_cache is not None and call.use_cache is not False,
    )
