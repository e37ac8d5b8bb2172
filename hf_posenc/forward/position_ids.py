"""What a caller's ``position_ids`` mean: positions on several axes, and numbers that do not begin at 0.

`on_axes` takes positions on several axes, as of images in Qwen2-VL (M-RoPE), out of a call.

`numbered` counts from 0, where models give their first token another number. RoBERTa and its relatives number tokens by
the rows of their table: padding 1 (``first - 1``) and text 2, 3, 4 …, as do callers who know the model. Others count
from 0, transformers' ``generate`` among them, by which the unpatched model reads rows that were not trained. A patched
one takes either for the positions 0, 1, 2 … that are meant: no token of a text has a number below ``first``, unless it
is counted from 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import InvalidInput
from hf_posenc.forward.attention_masks import counted_positions, of_new_tokens
from hf_posenc.forward.current_forward import NUMBERED_FROM
from hf_posenc.forward.forward_call import ForwardCall
from hf_posenc.forward.validate_inputs import positions_in_range
from hf_posenc.schemes.base import Scheme, implements


def on_axes(call: ForwardCall) -> ForwardCall:
    """The call with positions on several axes as ``coordinates [batch or 1, query, axes]``.

    Rotations of one axis follow them as in the unpatched model, where that has several. Elsewhere those of text, the
    same number on every axis, are positions of one axis.

    Raises:
        InvalidInput: they differ, as in images and videos, and a rotation can follow one axis only.
    """
    positions = call.position_ids
    if positions is None or positions.ndim != 3:
        return call
    rotating = [scheme for scheme in call.schemes if scheme.rotation() is not None or scheme.row_rotation() is not None]
    if (axes := model_axes(rotating)) is not None and len(positions) in (axes, axes + 1):
        own = positions[-axes:]  # transformers' ``generate`` puts the token's number before them
        return replace(call, position_ids=None, coordinates=own.movedim(0, -1))
    one_axis = next((scheme for scheme in rotating if getattr(scheme.rotation(), "axes", None) is None), None)
    if one_axis is not None and not is_traced():  # on a GPU, too: to wait is better than to lose an axis in silence
        return replace(call, position_ids=same_on_all_axes(positions, call.mask, one_axis))
    return replace(call, position_ids=None, coordinates=positions.movedim(0, -1))


def model_axes(rotating: list[Scheme]) -> int | None:
    """How many axes the unpatched model has, where all these rotations follow them as it does; else None."""
    for scheme in rotating:
        rotation, own = scheme.rotation(), scheme.geometry.rotary
        if rotation is None or own is None or not own.rotates_by_axes(rotation) or implements(scheme, "regions"):
            return None
    own = rotating[0].geometry.rotary if rotating else None
    return None if own is None or own.axes is None else 1 + max(own.axes)


def same_on_all_axes(coordinates: Tensor, mask: Any, scheme: Scheme) -> Tensor:
    """The number that real tokens have on every axis, ``[batch or 1, query]``.

    Args:
        coordinates: ``[axes, batch or 1, query]``.
        mask: of the call; one of ``[batch, key]`` says which tokens are padding, where axes may differ.
        scheme: that rotates along one axis, for the message.

    Raises:
        InvalidInput: a token stands at another place on each axis.
    """
    apart = (coordinates != coordinates[:1]).any(0)
    if isinstance(mask, Tensor) and mask.ndim == 2:
        apart = apart & mask[:, -apart.shape[-1] :].bool().to(apart.device)
    if coordinates.is_floating_point() or bool(apart.any()):
        raise InvalidInput(
            f"position_ids place tokens on {len(coordinates)} axes, as in an image, and scheme {scheme.shown_name!r} "
            "rotates along one. Patch with 'mrope', or with 'yarn' on a model that rotates along several itself; or "
            "pass whole numbers [batch or 1, tokens]."
        )
    return coordinates[0]


FROM_ZERO = "posenc_counts_from_zero"  # attribute of a cache: whether the positions given with its tokens do


def numbered(call: ForwardCall) -> ForwardCall:
    """The call with the caller's positions in int64, from 0; without any, a padded call gets those of real tokens.

    Raises:
        InvalidInput: a position is before the start of the text or beyond the largest.
    """
    positions, padding, cache = call.position_ids, call.padding, call.own_cache
    if positions is None:
        return call if padding is None else replace(call, position_ids=counted_positions(padding, call.length, cache))
    positions = positions.long()  # narrow integers wrap where they are subtracted
    counted, first = None, call.base.__dict__.get(NUMBERED_FROM)
    if first:
        counted = counts_from_zero(positions, first, padding, _pads(call), cache)
        positions = from_zero(positions, first, counted, padding, cache)
    positions = positions_in_range(positions, padding)
    return replace(call, position_ids=positions, numbered=True, from_zero=counted)


def _pads(call: ForwardCall) -> Tensor | None:
    """Where tokens of padding stand, ``[batch, query]``, as far as a call without a mask says."""
    ids, pad = call.keywords.get("input_ids"), getattr(call.base.config, "pad_token_id", None)
    return ids == pad if ids is not None and pad is not None and call.mask is None else None


def counts_from_zero(
    numbers: Tensor, first: int, padding: Tensor | None, pads: Tensor | None, cache: Cache | None
) -> bool | Tensor:
    """Whether a caller's numbers count from 0, and not from the model's own ``first``; a tensor while tracing.

    The numbers that a cache was filled with say so, else one that is lower than ``first``. Behind tokens that the model
    numbered itself, those that count on from 0 do.

    Args:
        numbers: whole numbers, ``[batch or 1, query]``.
        first: the number that the model gives to its first token.
        padding: ``[batch, key]``, true at real tokens, if anything is padded.
        pads: ``[batch, query]``, true at tokens of padding, of a call without a mask.
        cache: holds the keys before these tokens.
    """
    known: bool | None = getattr(cache, FROM_ZERO, None)
    past: Any = 0 if cache is None else cache.get_seq_length()
    past = past if is_traced() else int(past)
    if known is not None and (is_traced() or past > 0):
        return known
    low = numbers < first
    if padding is not None:
        low = low & of_new_tokens(padding, numbers.shape[1], cache).to(numbers.device)
    if pads is not None:
        low = low & ~(pads & (numbers == first - 1))
    found = low.any()
    if isinstance(past, Tensor) or past > 0:
        found = found | ((past > 0) & _continue(numbers, past, padding, cache))
    return found if is_traced() else bool(found)


def _continue(numbers: Tensor, past: int | Tensor, padding: Tensor | None, cache: Cache | None) -> Tensor:
    """Whether each number is how many real tokens stand before, a scalar; what is padding may have any."""
    length = numbers.shape[1]
    if padding is None:
        return (numbers == torch.arange(length, device=numbers.device) + past).all()
    counted, real = (
        one.to(numbers.device)
        for one in (counted_positions(padding, length, cache), of_new_tokens(padding, length, cache))
    )
    return ((numbers == counted) | ~real).all()


def from_zero(
    numbers: Tensor, first: int, counted: bool | Tensor, padding: Tensor | None, cache: Cache | None
) -> Tensor:
    """Positions from 0, ``[batch or 1, query]``; not below 0 at padding.

    Raises:
        InvalidInput: tokens that no mask hides have the number of padding. Not while tracing.
    """
    if isinstance(counted, Tensor):
        positions = torch.where(counted, numbers, numbers - first)
    else:
        positions = numbers if counted else numbers - first
    if padding is not None:
        real = of_new_tokens(padding, numbers.shape[1], cache).to(numbers.device)
        positions = torch.where(real, positions, positions.clamp(min=0))
    if counted is False and bool((lost := (positions < 0) & (numbers >= 0)).any()):
        low = int(numbers.expand_as(lost)[lost].min())
        raise InvalidInput(
            f"position_ids give a token the position {low}, but texts of this model begin at {first}. "
            "Pass an attention_mask where that token is padding, or number all of a text from 0."
        )
    return positions
