"""Positions on several axes, as of images in Qwen2-VL (M-RoPE): who follows them, and who reads text only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import InvalidInput
from hf_posenc.forward.forward_call import ForwardCall
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
    one_axis = next((scheme for scheme in rotating if not has_axes(scheme)), None)
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


def has_axes(scheme: Scheme) -> bool:
    """Whether a scheme's own rotation has several axes."""
    rotation = scheme.rotation()
    return rotation is not None and rotation.axes is not None


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
            f"position_ids place tokens on {len(coordinates)} axes, as in an image, and scheme {scheme.extra_repr()!r} "
            "rotates along one. Patch with 'mrope', or with 'yarn' on a model that rotates along several itself; or "
            "pass whole numbers [batch or 1, tokens]."
        )
    return coordinates[0]
