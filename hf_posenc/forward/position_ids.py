"""Read a caller's ``position_ids``: positions on several axes, and numbers that do not begin at 0.

`with_coordinates` separates positions on several axes, such as image positions in Qwen2-VL (M-RoPE).

`with_positions` converts ``position_ids`` to positions from 0. RoBERTa and its relatives number tokens by the rows of
their table: padding is 1 (``first - 1``), text is 2, 3, 4 …. Some callers pass these numbers. Others, such as
transformers' ``generate``, count from 0, and an unpatched model then reads untrained rows. A patched model accepts
both: a number below ``first`` at a token of the text shows that the caller counts from 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import InvalidInput
from hf_posenc.forward.attention_masks import columns_of_new_tokens, counted_positions
from hf_posenc.forward.current_forward import FIRST_POSITION_ID
from hf_posenc.forward.forward_call import ForwardCall
from hf_posenc.forward.validate_inputs import check_range
from hf_posenc.schemes.base import Scheme, implements


def with_coordinates(call: ForwardCall) -> ForwardCall:
    """The call with positions on several axes as ``coordinates [batch or 1, query, axes]``.

    If the unpatched model rotates along several axes, rotations of one axis follow them, too. For other models,
    positions that are the same on every axis, as in text, become positions on one axis.

    Raises:
        InvalidInput: positions differ by axis, as in images and videos, and a rotation can follow one axis only.
    """
    positions = call.position_ids
    if positions is None or positions.ndim != 3:
        return call
    rotating = [scheme for scheme in call.schemes if scheme.rotation() is not None or scheme.row_rotation() is not None]
    if (axes := model_axes(rotating)) is not None and len(positions) in (axes, axes + 1):
        coordinates = positions[-axes:]  # transformers' ``generate`` puts the number of the token before these
        return replace(call, position_ids=None, coordinates=coordinates.movedim(0, -1))
    one_axis = next((scheme for scheme in rotating if getattr(scheme.rotation(), "axes", None) is None), None)
    if one_axis is not None and not is_traced():  # even on a GPU: waiting is better than losing an axis silently
        return replace(call, position_ids=same_on_all_axes(positions, call.mask, one_axis))
    return replace(call, position_ids=None, coordinates=positions.movedim(0, -1))


def model_axes(rotating: list[Scheme]) -> int | None:
    """Number of axes of the unpatched model, if all these rotations can follow its axes; else None."""
    for scheme in rotating:
        rotation, host = scheme.rotation(), scheme.geometry.rotary
        if rotation is None or host is None or not host.rotates_by_axes(rotation) or implements(scheme, "regions"):
            return None
    host = rotating[0].geometry.rotary if rotating else None
    return None if host is None or host.axes is None else 1 + max(host.axes)


def same_on_all_axes(coordinates: Tensor, mask: Any, scheme: Scheme) -> Tensor:
    """Positions ``[batch or 1, query]`` from coordinates that are the same on all axes.

    Args:
        coordinates: ``[axes, batch or 1, query]``.
        mask: attention mask of the call. Padding in a mask ``[batch, key]`` may differ by axis.
        scheme: rotates along one axis; named in the message.

    Raises:
        InvalidInput: a real token has different positions on its axes.
    """
    differs = (coordinates != coordinates[:1]).any(0)
    if isinstance(mask, Tensor) and mask.ndim == 2:
        differs = differs & mask[:, -differs.shape[-1] :].bool().to(differs.device)
    if coordinates.is_floating_point() or bool(differs.any()):
        raise InvalidInput(
            f"position_ids place tokens on {len(coordinates)} axes, as in an image, and scheme {scheme.shown_name!r} "
            "rotates along one. Patch with 'mrope', or with 'yarn' on a model that itself rotates along several axes; "
            "or pass whole numbers [batch or 1, tokens]."
        )
    return coordinates[0]


COUNTS_FROM_ZERO = "posenc_counts_from_zero"  # attribute of a cache: whether callers numbered its tokens from 0


def with_positions(call: ForwardCall) -> ForwardCall:
    """The call with the caller's positions as int64 from 0. Without them, padded calls count their real tokens.

    Padding with a lower number gets 0: ``mask.cumsum(-1) - 1`` gives padding on the left the position −1.

    Raises:
        InvalidInput: a position is before the start of the text, or beyond the largest position.
    """
    padding, cache = call.padding, call.own_cache
    if call.position_ids is None:
        return call if padding is None else replace(call, position_ids=counted_positions(padding, call.length, cache))
    positions = numbers = call.position_ids.long()  # subtraction would overflow in narrow integers
    from_zero, first = None, call.base.__dict__.get(FIRST_POSITION_ID) or 0
    if first:
        ids, pad = call.keywords.get("input_ids"), getattr(call.base.config, "pad_token_id", None)
        pads = None if ids is None or pad is None or call.mask is not None else ids == pad
        from_zero = counts_from_zero(numbers, first, padding, pads, cache)
        from_first = ~from_zero if isinstance(from_zero, Tensor) else not from_zero
        positions = numbers - first * from_first
    if padding is not None:
        real = columns_of_new_tokens(padding, call.length, cache).to(positions.device)
        positions = torch.where(real, positions, positions.clamp(min=0))
    if from_zero is False:
        check_own_numbers(numbers, positions, first)
    check_range(positions)
    return replace(call, position_ids=positions, numbered_by_caller=True, counts_from_zero=from_zero)


def counts_from_zero(
    numbers: Tensor, first: int, padding: Tensor | None, pads: Tensor | None, cache: Cache | None
) -> bool | Tensor:
    """Whether a caller's numbers count from 0 instead of from the model's own ``first``; a tensor while tracing.

    The answer for the first tokens of a cache holds for later ones. Otherwise, a number below ``first`` means yes. So
    do numbers that count on from 0 after tokens that the model numbered itself.

    Args:
        numbers: whole numbers, ``[batch or 1, query]``.
        first: the number that the model gives to its first token.
        padding: ``[batch, key]``, true at real tokens; None without padding.
        pads: ``[batch, query]``, true at tokens with the id of padding; None with a mask.
        cache: KV cache with the keys before these tokens.
    """
    known: bool | None = getattr(cache, COUNTS_FROM_ZERO, None)
    past: Any = 0 if cache is None else cache.get_seq_length()
    past = past if is_traced() else int(past)
    if known is not None and (is_traced() or past > 0):
        return known
    low = numbers < first
    if padding is not None:
        low = low & columns_of_new_tokens(padding, numbers.shape[1], cache).to(numbers.device)
    if pads is not None:
        low = low & ~(pads & (numbers == first - 1))
    from_zero = low.any()
    if isinstance(past, Tensor) or past > 0:
        from_zero = from_zero | ((past > 0) & _counts_real_tokens(numbers, past, padding, cache))
    return from_zero if is_traced() else bool(from_zero)


def _counts_real_tokens(numbers: Tensor, past: int | Tensor, padding: Tensor | None, cache: Cache | None) -> Tensor:
    """Whether each real token's number is the number of real tokens before it, as a scalar tensor."""
    length = numbers.shape[1]
    if padding is None:
        return (numbers == torch.arange(length, device=numbers.device) + past).all()
    before, real = (
        columns.to(numbers.device)
        for columns in (counted_positions(padding, length, cache), columns_of_new_tokens(padding, length, cache))
    )
    return ((numbers == before) | ~real).all()


def check_own_numbers(numbers: Tensor, positions: Tensor, first: int) -> None:
    """Check numbers that count from the model's own ``first``; ``positions`` are the same from 0.

    Raises:
        InvalidInput: a token that no mask hides has the number of padding.
    """
    below = (positions < 0) & (numbers >= 0)
    if bool(below.any()):
        low = int(numbers.expand_as(below)[below].min())
        raise InvalidInput(
            f"position_ids give a token the position {low}, but texts of this model begin at {first}. "
            "Pass an attention_mask that hides this token as padding, or number the whole text from 0."
        )
