"""Turn an observed call of an attention module into a template, with placeholders for tensors that differ by call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import Cache

from hf_posenc.forward.host_calls import CACHE_NAMES
from hf_posenc.patches.general.attention import parameters_of
from hf_posenc.patches.general.observation import Stand, open_mask, repeated, rotation_of, zeros
from hf_posenc.patches.general.observer import ObservedInline, Observer


def template_of(observer: Observer, call: Mapping[str, Any], module: nn.Module) -> dict[str, Any]:
    """Template of a call: tensors become a `Stand`, or a call of the rotary module that computed them."""
    template: dict[str, Any] = {}
    input_name = parameters_of(type(module))[0]
    for name, value in call.items():
        if id(value) in observer.rotations:
            rotary, args, kwargs, _ = observer.rotations[id(value)]
            named = {key: _open(one) for key, one in kwargs.items()}
            template[name] = partial(rotation_of, name=rotary, args=tuple(map(_open, args)), kwargs=named)
        elif name == input_name:
            last = value.shape[-1] == observer.positions.shape[1] != value.shape[1]
            template[name] = Stand.CHANNELS_FIRST if last else Stand.HIDDEN
        elif name in CACHE_NAMES or isinstance(value, Cache):
            template[name] = None
        elif isinstance(value, Tensor):
            template[name] = mask_like(module, value) if "mask" in name else vectors_like(call[input_name], value)
        elif isinstance(value, Mapping) and "mask" in name:  # one mask for attention, others for other modules
            template[name] = {
                key: mask_like(module, one) if isinstance(one, Tensor) else one for key, one in value.items()
            }
        else:
            template[name] = value
    return template


def vectors_like(hidden: Tensor, value: Tensor) -> Stand | partial[Tensor]:
    """Placeholder for a tensor argument other than the layer's input and masks."""
    if value.is_floating_point() and value.ndim > 3:
        return partial(repeated, axes=value.ndim, value=value.flatten()[0].item())
    if value.is_floating_point() and value.ndim == 3 and value.shape[-1] != hidden.shape[-1]:
        return partial(zeros, width=value.shape[-1])
    return Stand.HIDDEN if value.is_floating_point() else Stand.POSITIONS


def mask_like(module: nn.Module, mask: Tensor) -> Stand | partial[Tensor]:
    """Placeholder for a mask; inline attention may need a mask even if it hides nothing."""
    value = mask.flatten()[0]
    opened = isinstance(module, ObservedInline) and bool((mask == value).all())
    return partial(open_mask, axes=mask.ndim, value=value.item(), dtype=mask.dtype) if opened else Stand.MASK


def _open(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return Stand.POSITIONS if not value.is_floating_point() else Stand.HIDDEN
