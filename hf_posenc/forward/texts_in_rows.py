"""Which tokens of a row are one text: read and checked once, where a call enters the base model, for every scheme.

    position_ids   0 1 2 3 0 1 2        begin again: two texts of a decoder, without a cache or a mask
    4-D mask       ▙ of 4, ▙ of 3       a text begins where none sees across; each counts from 0
    2-D mask       1 1 1 1 1 1 1        one text, whatever the positions are
    cu_seq_lens_q  0 4 7                say what position_ids or a 4-D mask say, and never more; likewise seq_idx

transformers makes masks of texts from ``position_ids``, in some families and without a cache. Here every family has
them: `hf_posenc.forward.packed_documents.separated` applies to the mask of a layer what `find_texts` has found.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad
from transformers.cache_utils import Cache

from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import MaskMismatch
from hf_posenc.forward.packed_cache import caches, leave_uncached, mixes
from hf_posenc.forward.packing_keywords import BORDERS, TEXT_OF_TOKEN, check_longest, check_said
from hf_posenc.forward.positions import in_steps_of_one
from hf_posenc.forward.texts_in_masks import sees_previous, several, starts_in_mask, tokens_of_text

UNCACHED = "Pass use_cache=False and no cache; or, for one text, an attention_mask of ones."


class RowTexts(NamedTuple):
    """Texts of the rows of a call.

    Attributes:
        number: of the text of every token, ``[batch or 1, token]``; None where masks need not be made to separate them.
        keys: of each token's text, their number ``[batch or 1, token]``, in rows of an encoder; else None.
    """

    number: Tensor | None = None
    keys: Tensor | None = None


def find_texts(
    module: nn.Module,
    kwargs: dict[str, Any],
    tokens: Tensor,
    cache: Cache | None,
    coordinates: Tensor | None,
    *,
    causal: bool,
    own_mask: bool,
) -> RowTexts:
    """The texts of the rows of a call, as far as attention has to know them.

    Packed texts are not cached unless that is asked for, which is refused. Positions that a 4-D mask implies are put
    into the call.

    Args:
        module: the base model.
        kwargs: of the call.
        tokens: ``[batch, token, …]``.
        cache: of self-attention, if the caller passed one.
        coordinates: positions on several axes, ``[batch, token, axes]``.
        causal: whether the model is a decoder.
        own_mask: whether a mask of the call is the caller's, not made by a model around this one for kinds of layers.

    Raises:
        MaskMismatch: keywords say other texts than positions or mask do, or texts cannot be kept apart.
        InvalidInput: ``max_length_q`` or ``max_length_k`` is shorter than a text.
    """
    mask, length = kwargs.get("attention_mask"), tokens.shape[1]
    said = [name for name in (*BORDERS, TEXT_OF_TOKEN) if kwargs.get(name) is not None]
    if length == 1 and not said:  # a decoding step
        return RowTexts()
    texts = starts = None
    if mask is None:
        texts = _by_positions(module, kwargs, cache, coordinates, causal=causal)
        starts = None if texts is None else pad(texts.diff(dim=-1) != 0, (1, 0), value=True)
    elif isinstance(mask, Tensor) and mask.ndim == 4 and mask.shape[-2] == length:
        counts = own_mask and kwargs.get("position_ids") is None and coordinates is None
        if said or counts or not causal or mixes(module):
            starts = _by_mask(module, kwargs, mask, cache, counts=counts)
    elif isinstance(mask, BlockMask) and not is_traced():
        starts = ~sees_previous(mask, len(tokens), length)
        if kwargs.get("position_ids") is None and several(starts):
            raise MaskMismatch(
                "The BlockMask keeps texts of a row apart, whose tokens would be numbered as those of one. "
                "Pass position_ids that begin again at every text."
            )
    if said and not is_traced():
        for name in said:
            check_said(name, kwargs[name], starts, tokens)
        check_longest(kwargs)
    return RowTexts(texts, None if causal or starts is None else tokens_of_text(starts))


def _by_positions(
    module: nn.Module, kwargs: dict[str, Any], cache: Cache | None, coordinates: Tensor | None, *, causal: bool
) -> Tensor | None:
    """Texts by positions that begin again, or, where nothing is cached, leave a gap; as transformers has it."""
    positions: Any = kwargs.get("position_ids")
    cached = caches(module, kwargs, cache) if causal else False
    if positions is None and coordinates is None:
        return None
    if is_traced():  # values are not known: the mask of every call separates, where nothing is cached
        return _numbered(positions.diff(dim=-1) != 1) if causal and cached is False and positions is not None else None
    if coordinates is not None and not causal:  # patches of a picture stand in any order
        return None
    if coordinates is not None:  # a picture leaves gaps, and time does not run back within a text
        again = borders = coordinates[..., 0].diff(dim=-1) < 0
    elif in_steps_of_one(positions):
        return None
    else:
        steps = positions.diff(dim=-1)
        again, borders = steps <= 0, steps != 1
        if not causal:  # encoders take numbers in any order, and transformers never for several texts
            again = positions[:, 1:] == positions[:, :1]
    begins_again = bool(again.any())
    if begins_again and not causal:
        raise MaskMismatch(
            "position_ids begin again within a row, and an encoder reads the row as one text. Pass an attention_mask "
            "[batch, 1, tokens, tokens] that keeps the texts apart; or, for one text, a mask of ones."
        )
    if begins_again and cached:
        raise MaskMismatch(
            f"position_ids begin again within a row, as of several texts, which a KV cache would mix. {UNCACHED}"
        )
    if not causal or (cached is not False and not begins_again) or not bool(borders.any()):
        return None
    leave_uncached(module, kwargs)
    return _numbered(borders)


def _by_mask(
    module: nn.Module, kwargs: dict[str, Any], mask: Tensor, cache: Cache | None, *, counts: bool
) -> Tensor | None:
    """Where texts begin under a mask ``[batch or 1, heads or 1, token, key]``; positions too, if it ``counts`` them."""
    cached = caches(module, kwargs, cache)
    if is_traced():
        starts, packed = (starts_in_mask(mask), True) if counts and cached is False else (None, False)
    else:
        held = mask.shape[-1] - mask.shape[-2]  # keys before these tokens, or as many places and more
        past = 0 if cache is None else min(int(cache.get_seq_length()), held)
        starts = starts_in_mask(mask[..., : past + mask.shape[-2]], past)
        packed = several(starts, past)
        if packed and counts and cached:
            raise MaskMismatch(
                "The attention mask keeps texts of a row apart, whose tokens a KV cache would number as those of one. "
                "Pass position_ids that begin again at every text, or use_cache=False and no cache."
            )
        if packed:
            leave_uncached(module, kwargs, keep=not counts)
    if starts is not None and counts and (packed or cached is False):
        index = torch.arange(starts.shape[1], device=starts.device)
        kwargs["position_ids"] = index - torch.where(starts, index, 0).cummax(-1).values
    return starts


def _numbered(borders: Tensor) -> Tensor:
    return pad(borders.cumsum(-1), (1, 0))
