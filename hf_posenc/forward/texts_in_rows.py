"""Find the texts that are packed into a row, once for each call of the base model and for every scheme.

    position_ids   0 1 2 3 0 1 2        positions begin again: two texts of a decoder, without a cache or a mask
    4-D mask       ▙ of 4, ▙ of 3       a text begins where no token sees an earlier one; each text counts from 0
    2-D mask       1 1 1 1 1 1 1        one text with any positions
    cu_seq_lens_q  0 4 7                must agree with position_ids or the 4-D mask; so must seq_idx

transformers makes such masks from ``position_ids``, for some families and without a cache. Here all families have them:
`with_packed_texts` finds the texts, and `hf_posenc.forward.text_borders.separate_texts` changes the mask of a layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import InvalidInput, MaskMismatch
from hf_posenc.forward.attention_masks import HIDDEN, columns_of_new_tokens
from hf_posenc.forward.forward_call import ForwardCall
from hf_posenc.forward.positions import in_steps_of_one
from hf_posenc.forward.text_borders import (
    CU_SEQ_LENS,
    TEXT_OF_TOKEN,
    check_max_lengths,
    check_text_keyword,
    has_several_texts,
    sees_previous,
    text_starts,
)
from hf_posenc.schemes.base import Scheme, implements

RECURRENT = ("linear", "conv", "mamba", "hybrid", "recurrent")  # layer types that carry a state along the tokens
UNCACHED = "Pass use_cache=False and no cache; or, for one text, an attention_mask of ones."


def with_packed_texts(call: ForwardCall) -> ForwardCall:
    """The call with the texts of its rows, if attention has to separate or count them.

    Packed texts are not cached: a cache that the caller asks for is refused. If a 4-D mask separates texts, the call
    gets positions that count from 0 in each text.

    Raises:
        MaskMismatch: keywords contradict the positions or the mask, or the texts cannot be separated.
        InvalidInput: ``max_length_q`` or ``max_length_k`` is shorter than a text.
    """
    mask, keywords = call.mask, call.keywords
    text_keywords = [name for name in (*CU_SEQ_LENS, TEXT_OF_TOKEN) if keywords.get(name) is not None]
    if call.paged or (call.length == 1 and not text_keywords):  # a decoding step
        return call
    starts = None
    if mask is None:
        call, starts = _by_positions(call)
    elif isinstance(mask, Tensor) and mask.ndim == 4 and mask.shape[-2] == call.length:
        call, starts = _by_mask(call, mask, required=len(text_keywords) > 0)
    elif isinstance(mask, BlockMask) and not is_traced():
        starts = _by_block_mask(call, mask)
    if text_keywords and not is_traced():
        for name in text_keywords:
            check_text_keyword(name, keywords[name], starts, call.tokens)
        check_max_lengths(keywords)
    if starts is None or call.causal:
        return call
    text = starts.cumsum(-1)
    return replace(call, text_keys=(text[:, :, None] == text[:, None, :]).sum(-1))


def with_text_lengths(call: ForwardCall) -> ForwardCall:
    """The call with position 0 at padding, if a scheme reads the length of each text from the positions of its tokens.

    Raises:
        InvalidInput: positions do not count up within each text, or padding interrupts a text.
    """
    mask = call.mask
    if is_traced() or isinstance(mask, BlockMask) or (call.unmasked and not call.numbered_by_caller):
        return call
    scheme = next((scheme for scheme in call.schemes if _reads_text_lengths(scheme, call.causal)), None)
    if scheme is None:
        return call
    positions = call.positions
    starts = torch.arange(call.length, device=positions.device)[None] == 0
    real = torch.ones_like(starts)
    if isinstance(mask, Tensor) and mask.ndim == 4 and mask.shape[-2] == call.length:
        mask = mask[..., : call.length]
        starts, real = text_starts(mask), (mask if mask.dtype == torch.bool else mask > HIDDEN).any((1, 2))
    elif call.texts is not None:
        starts = pad(call.texts.diff(dim=-1) != 0, (1, 0), value=True)
    elif call.padding is not None:
        real = columns_of_new_tokens(call.padding, call.length, call.own_cache)
    begins = pad(positions.diff(dim=-1) <= 0, (1, 0), value=True)
    after_real = pad(real[:, :-1], (1, 0))
    follows = ~starts & (real.cumsum(-1) > 1)
    if bool((real & torch.where(after_real, begins != starts, follows)).any()):
        raise InvalidInput(
            f"Scheme {scheme.shown_name!r} reads the length of each text from positions, and these do not count up "
            "within each text. Pass the tokens of a text one after another, in order of position."
        )
    return replace(call, position_ids=positions.where(real, 0))


def _reads_text_lengths(scheme: Scheme, causal: bool) -> bool:
    return (scheme.needs_whole_text and not scheme.randomises) or (not causal and implements(scheme, "row_rotation"))


def _by_positions(call: ForwardCall) -> tuple[ForwardCall, Tensor | None]:
    """The call with the number of each token's text, and the first token of each text; None for one text a row."""
    borders = _borders_in_positions(call)
    if borders is None:
        return call, None
    call = call if is_traced() else _without_cache(call)
    return replace(call, texts=pad(borders.cumsum(-1), (1, 0))), pad(borders, (1, 0), value=True)


def _borders_in_positions(call: ForwardCall) -> Tensor | None:
    """Whether a text begins after each token but the last, ``[batch or 1, token − 1]``; None for one text a row.

    A text begins where positions begin again, or leave a gap in uncached calls.
    """
    positions, coordinates = call.position_ids, call.coordinates
    if not call.causal:  # encoders accept positions in any order, and transformers never separates texts by them
        if positions is None or coordinates is not None or is_traced():
            return None
        if bool((positions[:, 1:] == positions[:, :1]).any()):
            raise MaskMismatch(
                "position_ids begin again within a row, but an encoder reads the row as one text. Pass an "
                "attention_mask [batch, 1, tokens, tokens] that separates the texts; or, for one text, a mask of ones."
            )
        return None
    cached = _asks_for_cache(call)
    if is_traced():  # values are unknown: without a cache, the mask of every call separates texts
        if cached is not False or positions is None:
            return None
        return positions.diff(dim=-1) != 1
    if coordinates is not None:  # images leave gaps, but time never decreases within a text
        restarts = borders = coordinates[..., 0].diff(dim=-1) < 0
    elif positions is None or in_steps_of_one(positions):
        return None
    else:
        steps = positions.diff(dim=-1)
        restarts, borders = steps <= 0, steps != 1
    if not bool(restarts.any()):
        return borders if cached is False and bool(borders.any()) else None
    if cached:
        raise MaskMismatch(f"position_ids restart within a row: a KV cache would mix its texts. {UNCACHED}")
    return borders


def _by_mask(call: ForwardCall, mask: Tensor, *, required: bool) -> tuple[ForwardCall, Tensor | None]:
    """The call, and the first token of each text under a mask ``[batch or 1, heads or 1, token, key]`` (None: unknown).

    Without positions of the caller, the returned call has positions that count from 0 in each text. Otherwise the texts
    of a decoder are found only if they are ``required``, or if other layers than attention would mix them.
    """
    counts = call.masks_by_kind is None and call.position_ids is None and call.coordinates is None
    if call.causal and not (counts or required or has_recurrent_layers(call.base)):
        return call, None
    cached = _asks_for_cache(call)
    if is_traced():
        if not counts or cached is not False:
            return call, None
        starts, packed = text_starts(mask), True
    else:
        # A static cache has more columns than keys.
        past = min(int(call.past), mask.shape[-1] - mask.shape[-2])
        starts = text_starts(mask[..., : past + mask.shape[-2]], past)
        packed = has_several_texts(starts, past)
        if packed and counts and cached:
            raise MaskMismatch(
                "The attention mask separates texts within a row, but a KV cache would count them as one text. "
                "Pass position_ids that begin again at every text, or use_cache=False and no cache."
            )
        if packed:
            call = _without_cache(call, keep=not counts)
    if counts and (packed or cached is False):
        index = torch.arange(starts.shape[1], device=starts.device)
        call = replace(call, position_ids=index - torch.where(starts, index, 0).cummax(-1).values)
    return call, starts


def _by_block_mask(call: ForwardCall, mask: BlockMask) -> Tensor:
    """First token of each text under a mask of flex attention, ``[batch, token]``."""
    starts = ~sees_previous(mask, call.tokens.shape[0], call.length)
    if call.position_ids is None and has_several_texts(starts):
        raise MaskMismatch(
            "The BlockMask separates texts within a row, but positions would count them as one text. "
            "Pass position_ids that begin again at every text."
        )
    return starts


def _asks_for_cache(call: ForwardCall) -> bool | None:
    """Whether the caller asks for a KV cache; None if only the configuration does."""
    if call.cache is not None or call.use_cache is not None:
        return call.cache is not None or bool(call.use_cache)
    return None if getattr(call.base.config, "use_cache", False) else False


def _without_cache(call: ForwardCall, *, keep: bool = False) -> ForwardCall:
    """The call with caching switched off, unless the caller set it or ``keep`` is true.

    Raises:
        MaskMismatch: the model has recurrent layers, which would mix the texts of a row.
    """
    if has_recurrent_layers(call.base):
        raise MaskMismatch(
            "Several texts are packed into a row, but layers of this model other than attention would mix them. "
            "Pass one text per row; or, for one text, an attention_mask of ones."
        )
    return call if keep or _asks_for_cache(call) is not None else replace(call, use_cache=False)


def has_recurrent_layers(base: nn.Module) -> bool:
    """Whether a model has layers that carry a state from token to token, which no mask stops."""
    config: Any = base.config
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    return getattr(base, "_is_stateful", False) if kinds is None else any(kind.startswith(RECURRENT) for kind in kinds)
