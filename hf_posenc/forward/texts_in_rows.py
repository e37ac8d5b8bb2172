"""Which tokens of a row are one text: read and checked once, where a call enters the base model, for every scheme.

    position_ids   0 1 2 3 0 1 2        begin again: two texts of a decoder, without a cache or a mask
    4-D mask       ▙ of 4, ▙ of 3       a text begins where none sees across; each counts from 0
    2-D mask       1 1 1 1 1 1 1        one text, whatever the positions are
    cu_seq_lens_q  0 4 7                say what position_ids or a 4-D mask say, and never more; likewise seq_idx

transformers makes masks of texts from ``position_ids``, in some families and without a cache. Here every family has
them: `hf_posenc.forward.text_borders.separated` applies to the mask of a layer what `divided` has found.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import MaskMismatch
from hf_posenc.forward.forward_call import ForwardCall
from hf_posenc.forward.positions import in_steps_of_one
from hf_posenc.forward.text_borders import (
    BORDERS,
    TEXT_OF_TOKEN,
    check_longest,
    check_said,
    sees_previous,
    several,
    starts_in_mask,
    tokens_of_text,
)

RECURRENT = ("linear", "conv", "mamba", "hybrid", "recurrent")  # kinds of layers that hand on what they have read
UNCACHED = "Pass use_cache=False and no cache; or, for one text, an attention_mask of ones."


def divided(call: ForwardCall) -> ForwardCall:
    """The call with the texts of its rows, as far as attention has to know them.

    Packed texts are not cached unless that is asked for, which is refused. The call gets the positions that a 4-D mask
    implies.

    Raises:
        MaskMismatch: keywords say other texts than positions or mask do, or texts cannot be kept apart.
        InvalidInput: ``max_length_q`` or ``max_length_k`` is shorter than a text.
    """
    mask, said = call.mask, [name for name in (*BORDERS, TEXT_OF_TOKEN) if call.keywords.get(name) is not None]
    if call.paged or (call.length == 1 and not said):  # a decoding step
        return call
    texts = starts = None
    if mask is None:
        texts = _by_positions(call)
        if texts is not None:
            starts = pad(texts.diff(dim=-1) != 0, (1, 0), value=True)
            call = call if is_traced() else _uncached(call)
    elif isinstance(mask, Tensor) and mask.ndim == 4 and mask.shape[-2] == call.length:
        counts = call.masks_by_kind is None and call.position_ids is None and call.coordinates is None
        if said or counts or not call.causal or mixes(call.base):
            call, starts = _by_mask(call, mask, counts=counts)
    elif isinstance(mask, BlockMask) and not is_traced():
        starts = ~sees_previous(mask, call.tokens.shape[0], call.length)
        if call.position_ids is None and several(starts):
            raise MaskMismatch(
                "The BlockMask separates texts within a row, but their tokens would be numbered as one text. "
                "Pass position_ids that begin again at every text."
            )
    if said and not is_traced():
        for name in said:
            check_said(name, call.keywords[name], starts, call.tokens)
        check_longest(call.keywords)
    keys = None if call.causal or starts is None else tokens_of_text(starts)
    return call if texts is None and keys is None else replace(call, texts=texts, text_keys=keys)


def _by_positions(call: ForwardCall) -> Tensor | None:
    """Texts by positions that begin again, or, where nothing is cached, leave a gap; as transformers has it."""
    positions, coordinates, causal = call.position_ids, call.coordinates, call.causal
    cached = _caches(call) if causal else False
    if positions is None and coordinates is None:
        return None
    if is_traced():  # values are not known: the mask of every call separates, where nothing is cached
        return _numbered(positions.diff(dim=-1) != 1) if causal and cached is False and positions is not None else None
    if coordinates is not None and not causal:  # patches of a picture stand in any order
        return None
    if coordinates is not None:  # a picture leaves gaps, and time does not run back within a text
        again = borders = coordinates[..., 0].diff(dim=-1) < 0
    elif positions is None or in_steps_of_one(positions):
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
        raise MaskMismatch(f"position_ids restart within a row: a KV cache would mix its texts. {UNCACHED}")
    if not causal or (cached is not False and not begins_again) or not bool(borders.any()):
        return None
    return _numbered(borders)


def _by_mask(call: ForwardCall, mask: Tensor, *, counts: bool) -> tuple[ForwardCall, Tensor | None]:
    """Where texts begin under a mask ``[batch or 1, heads or 1, token, key]``, and positions if it ``counts`` them."""
    cached = _caches(call)
    if is_traced():
        starts, packed = (starts_in_mask(mask), True) if counts and cached is False else (None, False)
    else:
        held = mask.shape[-1] - mask.shape[-2]  # keys before these tokens, or as many places and more
        past = min(int(call.past), held)
        starts = starts_in_mask(mask[..., : past + mask.shape[-2]], past)
        packed = several(starts, past)
        if packed and counts and cached:
            raise MaskMismatch(
                "The attention mask separates texts within a row, but a KV cache would number them as one text. "
                "Pass position_ids that begin again at every text, or use_cache=False and no cache."
            )
        if packed:
            call = _uncached(call, keep=not counts)
    if starts is not None and counts and (packed or cached is False):
        index = torch.arange(starts.shape[1], device=starts.device)
        call = replace(call, position_ids=index - torch.where(starts, index, 0).cummax(-1).values)
    return call, starts


def _caches(call: ForwardCall) -> bool | None:
    """Whether a call caches its tokens: as it asks for, or None where only the configuration says so."""
    if call.cache is not None or call.use_cache is not None:
        return call.cache is not None or bool(call.use_cache)
    return None if getattr(call.base.config, "use_cache", False) else False


def _uncached(call: ForwardCall, *, keep: bool = False) -> ForwardCall:
    """The call without a cache, unless asked to ``keep`` it; refuse layers that mix the texts of a row.

    Raises:
        MaskMismatch: the model has layers that no mask reaches.
    """
    if mixes(call.base):
        raise MaskMismatch(
            "Several texts are packed into a row, and layers of this model other than attention would mix "
            "them. Pass one text a row; or, for one text, an attention_mask of ones."
        )
    return call if keep or _caches(call) is not None else replace(call, use_cache=False)


def mixes(base: nn.Module) -> bool:
    """Whether a model has layers that hand on what they have read, whatever a mask says."""
    config: Any = base.config
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    return getattr(base, "_is_stateful", False) if kinds is None else any(k.startswith(RECURRENT) for k in kinds)


def _numbered(borders: Tensor) -> Tensor:
    return pad(borders.cumsum(-1), (1, 0))
