"""Check the attention mask of a base model's call, and convert it to the form that every route reads.

transformers ignores a mask of one, three or five axes. Under ``eager`` it adds a bool mask to the scores as ones and
zeros. In a 2-D mask it takes every number except 0, even NaN, for a real token.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers import Cache

from hf_posenc.cache.validate_cache import first_full_layer
from hf_posenc.core.tracing import is_either, is_traced
from hf_posenc.errors import InvalidInput, MaskMismatch
from hf_posenc.forward.forward_call import ForwardCall
from hf_posenc.forward.validate_inputs import check_tensor, dtype_name, values_known
from hf_posenc.schemes.base import Scheme

HIDDEN = -1e3  # a floating mask hides a pair by adding this value or less to its score


def check_mask(mask: Any, tokens: Tensor, heads: int, cache: Cache | None) -> None:
    """Check a mask ``[batch or 1, key]``, or ``[batch or 1, heads or 1, query or 1, key]``; None is valid.

    Args:
        mask: the caller's mask.
        tokens: ids or embeddings, ``[batch, query, …]``.
        heads: attention heads of the model.
        cache: KV cache with the keys before these tokens.

    Raises:
        MaskMismatch: the shape or dtype does not match the tokens.
        InvalidInput: the mask is no tensor, or has an invalid value.
    """
    if mask is None or isinstance(mask, BlockMask):  # made for flex attention
        return
    check_tensor("attention_mask", mask)
    batch, length = tokens.shape[:2]
    if mask.ndim not in (2, 4) or not is_either(mask.shape[0], 1, batch):
        raise MaskMismatch(
            f"The attention mask has the shape {tuple(mask.shape)}, and there are {batch} rows of {length} tokens. "
            "Pass [batch, keys], or [batch, 1 or heads, tokens, keys]."
        )
    if mask.ndim == 2:
        _check_width(mask, length, cache)
        _check_padding_values(mask)
        return
    if not is_either(mask.shape[1], 1, heads) or not is_either(mask.shape[2], 1, length):
        raise MaskMismatch(
            f"The attention mask has the shape {tuple(mask.shape)}, for {heads} heads and {length} tokens. "
            f"Pass [batch or 1, 1 or {heads}, {length}, keys]."
        )
    _check_columns(mask, length, cache)
    _check_scores_mask(mask)


def _check_width(mask: Tensor, length: int, cache: Cache | None) -> None:
    """Check that a 2-D mask covers every token of the text, or every place of a static cache."""
    past: Any = 0 if cache is None else cache.get_seq_length()
    if isinstance(past, Tensor):
        if not values_known(past):
            return
        past = int(past)
    places = past + length if cache is None else max(_widest_layer_keys(cache, length), past + length)
    if not is_either(mask.shape[1], past + length, places):
        raise MaskMismatch(
            f"The attention mask is {mask.shape[1]} wide for {length} tokens after {past} cached ones. "
            f"Pass a mask of width {past + length}."
        )


def _check_columns(mask: Tensor, length: int, cache: Cache | None) -> None:
    """Check that a 4-D mask covers every token of the text, or every place of a static cache."""
    keys = length
    if cache is not None:  # a static cache returns all its places; an evicting one has seen more keys than it holds
        past, keys = cache.get_seq_length(), _widest_layer_keys(cache, length)
        if not cache.layers or first_full_layer(cache) is not None:
            keys = max(keys, length if isinstance(past, Tensor) else past + length)
    if mask.shape[-1] != keys:
        raise MaskMismatch(
            f"The attention mask of shape {tuple(mask.shape)} has {mask.shape[-1]} columns, and there are {keys} keys. "
            "Pass one column for each key."
        )


def check_dropped_keys(mask: Tensor, length: int, cache: Cache | None) -> None:
    """Raise `MaskMismatch` for a 4-D mask of all layers if some layers have dropped keys that have columns in it."""
    if cache is None or mask.ndim != 4:
        return
    for layer in cache.layers:
        if not getattr(layer, "is_sliding", False):
            continue
        keys, dropped = layer.get_mask_sizes(length)
        if dropped > 0 and keys != mask.shape[-1]:
            raise MaskMismatch(
                f"The attention mask of shape {tuple(mask.shape)} is for all layers, but layers with a sliding window "
                f"have dropped {int(dropped)} keys. Pass DynamicCache(), which keeps all keys, from the start."
            )


def check_shown_keys(mask: Tensor, length: int, scheme: Scheme, cache: Cache | None) -> None:
    """Refuse a 4-D mask that shows a decoder keys for which its scheme has no scores: later keys, or keys before
    hidden ones whose gates would count; raises `MaskMismatch`.
    """
    past: Any = 0 if cache is None else cache.get_seq_length()
    if mask.ndim != 4 or not values_known(mask) or (isinstance(past, Tensor) and not values_known(past)):
        return
    parts = [part for part in scheme.modules() if isinstance(part, Scheme) and not part.later_keys]
    if not parts:
        return
    columns = torch.arange(mask.shape[-1]) + max(0, int(past) + length - mask.shape[-1])
    later = columns > torch.arange(length)[:, None] + int(past)
    shown = mask if mask.dtype is torch.bool else mask > HIDDEN
    if bool((shown & later).any()):
        raise MaskMismatch(
            f"The attention mask shows token {int((shown & later).nonzero()[0, 2]) + int(past)} a key after it, but "
            f"scheme {parts[0].record.name!r} has scores of earlier keys only. Hide later keys, or patch with a scheme "
            "that has scores of all keys, such as 'rope' or 't5'."
        )
    gated = next((part for part in parts if part.sums_gates), None)
    first = int(past) - int(columns[0])
    shown = shown & shown.any(-2)[..., first : first + length, None]  # padding, which no token sees, may see any key
    if gated is not None and bool((shown[..., :-1] & ~shown[..., 1:] & ~later[:, 1:]).any()):
        raise MaskMismatch(
            f"The attention mask hides a key between a token and one that it sees, and scheme {gated.record.name!r} "
            "adds up the gates of all tokens between. Show all keys between, or pass one text a row."
        )


def _widest_layer_keys(cache: Cache, length: int) -> int:
    """Number of keys that the widest layer attends to; the first layer may have a sliding window, and fewer places."""
    return cache.get_mask_sizes(length, first_full_layer(cache) or 0)[0]


def _check_padding_values(mask: Tensor) -> None:
    """Check that a 2-D mask holds 1 (or True) at real tokens and 0 at padding."""
    if mask.dtype is torch.bool:
        return
    if mask.is_complex():
        raise InvalidInput("The attention mask has complex values. Pass 1 at real tokens and 0 at padding.")
    if values_known(mask) and not bool(((mask == 0) | (mask == 1)).all()):
        odd = mask[(mask != 0) & (mask != 1)].flatten()[0].item()
        raise InvalidInput(
            f"The attention mask of shape {tuple(mask.shape)} holds {odd}. Pass 1 at real tokens and 0 at padding."
        )


def _check_scores_mask(mask: Tensor) -> None:
    """Check that a 4-D mask is bool, true at visible pairs, or floating and added to the scores."""
    if mask.dtype is torch.bool:
        return
    if not mask.is_floating_point():
        raise MaskMismatch(
            f"The attention mask of four axes holds {dtype_name(mask.dtype)} values, which are neither booleans nor "
            "added to scores. Pass attention_mask.bool()."
        )
    if not values_known(mask):
        return
    low, high = (float(end) for end in mask.aminmax())
    if math.isnan(low) or high == math.inf:
        raise InvalidInput(
            f"The attention mask of four axes holds {low if math.isnan(low) else high}. "
            "Pass 0 where a query sees a key and torch.finfo(dtype).min elsewhere."
        )
    if (low, high) == (0.0, 1.0) and bool(((mask == 0) | (mask == 1)).all()):
        raise InvalidInput(
            f"The attention mask of four axes holds {dtype_name(mask.dtype)} zeros and ones, which would be added to "
            "the scores. Pass attention_mask.bool()."
        )


def with_padding(call: ForwardCall) -> ForwardCall:
    """The call with its mask in the form that every route reads, and with the padding of a 2-D mask.

    Raises:
        InvalidInput: a row has no real token.
    """
    mask = call.mask
    if mask is None:
        return call
    if not isinstance(mask, Tensor):
        return replace(call, unmasked=False)
    if mask.ndim != 2:  # it may hide any pair
        base: Any = call.base
        return replace(call, mask=scores_mask(mask, base.dtype, base.config._attn_implementation), unmasked=False)
    if mask.shape[0] != call.tokens.shape[0]:  # one row for all sequences
        mask = mask.expand(call.tokens.shape[0], -1)
        call = replace(call, mask=mask)
    padding = mask.bool()
    if is_traced():
        return replace(call, padding=padding, unmasked=False)
    if call.cache is None and not call.use_cache:  # else a later chunk may have real tokens
        empty = ~padding.any(-1)
        if bool(empty.any()):
            row = int(empty.nonzero()[0])
            raise InvalidInput(f"The attention mask hides all tokens of row {row}. Leave that row out of the batch.")
    return call if bool(padding.all()) else replace(call, padding=padding, unmasked=False)


def counted_positions(padding: Tensor, length: int, cache: Cache | None) -> Tensor:
    """Positions of the new tokens: the number of real tokens before each, ``[batch, length]``.

    Args:
        padding: ``[batch, key]``, true at real tokens; for a static cache, it may cover places that are not written.
        length: number of new tokens.
        cache: KV cache with the keys before these tokens.
    """
    return columns_of_new_tokens((padding.cumsum(-1) - 1).clamp(min=0), length, cache)


def columns_of_new_tokens(columns: Tensor, length: int, cache: Cache | None) -> Tensor:
    """Columns of the new tokens, ``[batch, length]``, from values for every key, ``[batch, key]``."""
    past: Any = 0 if cache is None else cache.get_seq_length()
    if isinstance(past, Tensor):  # a slice by a tensor would wait for its device
        return columns[:, torch.arange(length, device=columns.device) + past.to(columns.device)]
    return columns[:, past : past + length]


def scores_mask(mask: Tensor, dtype: torch.dtype, backend: str | None) -> Tensor:
    """Convert a 4-D mask to a dtype that the attention backend accepts for scores of ``dtype``.

    ``eager`` adds any mask to the scores, so a bool mask is converted to numbers. Other backends take bool, float32 or
    the dtype of the scores. The lowest value of another floating dtype becomes the lowest value of the new one.
    """
    if mask.dtype is torch.bool and backend == "eager":
        return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    if mask.dtype in (torch.bool, torch.float32, dtype):
        return mask
    hidden = mask <= torch.finfo(mask.dtype).min
    return mask.to(dtype).masked_fill(hidden, torch.finfo(dtype).min)
