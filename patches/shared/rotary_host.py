"""Shared code of adapters for RoPE models: read the rotation, disable it, and add position codes to embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import ROPE_INIT_FUNCTIONS

from hf_posenc.core.constants import HALF
from hf_posenc.core.geometry import HostRotary, Layout, Rotation, geometric
from hf_posenc.errors import ForeignPatch, UnsupportedModel, shown
from hf_posenc.forward.current_forward import ATTENTION, OWNER, current_forward
from hf_posenc.forward.placement import scheme_on
from hf_posenc.forward.positions import KEYWORD
from hf_posenc.patches.shared.position_table import padded_to_width

LOADED_BY_NAME = "RotaryEmbedding"
"""transformers' loader recomputes the frequencies of modules that have this in their class's name."""


def host_rotary(
    config: Any, head_dim: int, *, dims: int | None = None, layout: Layout = "half", by_length: Sequence[str] = ()
) -> HostRotary:
    """The rotation in ``config.rope_parameters``, computed from its numbers: a cast model has rounded its buffers.

    Args:
        config: configuration of the base model.
        head_dim: channels of a head.
        dims: number of rotated channels, the first ones of a head; all by default.
        layout: which channels form a pair.
        by_length: scalings whose frequencies change with the length; for these the unscaled rotation is returned.

    Raises:
        UnsupportedModel: the configuration has no rotation, several, or one of an unknown type.
    """
    dims = head_dim if dims is None else dims
    parameters = getattr(config, "rope_parameters", None) or {}
    kind, base = parameters.get("rope_type"), parameters.get("rope_theta")
    if not isinstance(kind, str) or base is None:
        raise UnsupportedModel(
            f"rope_parameters of this {config.model_type} model are {shown(parameters)}, which is not one rotation "
            "with a rope_type and a rope_theta. Correct them, or have an adapter of your own give its rotation without "
            "host_rotary."
        )
    if kind == "default" or kind in by_length:
        return HostRotary(Rotation(geometric(float(base), dims), layout), float(base))
    if kind not in ROPE_INIT_FUNCTIONS:
        raise UnsupportedModel(
            f"The rotation of this {config.model_type} model is of the type {kind!r}, which has no fixed frequencies. "
            "Choose another type, or have an adapter of your own give its rotation without host_rotary."
        )
    with torch.device("cpu"):  # a loader may build the model on the meta device, which has no numbers
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    rotates_all = dims == head_dim
    rotation = Rotation(tuple(frequencies.double().tolist()), layout, amplitude=1.0 if rotates_all else float(factor))
    return HostRotary(rotation, float(base), factor**2 if rotates_all else 1.0)


def as_configured(rotary: Any) -> Any:
    """A rotary module with exact frequencies: rebuilt if a cast or a longer text has changed them, else itself.

    A cast to half precision changes angles by radians from position 10³ on. A module that follows the text length keeps
    the frequencies of the longest text so far.
    """
    buffers = [(name, buffer) for name, buffer in rotary.named_buffers() if buffer.is_floating_point()]
    trained = next(rotary.parameters(), None) is not None
    if isinstance(rotary, DisabledRotary) or trained or not buffers or any(buffer.is_meta for _, buffer in buffers):
        return rotary
    fresh = as_built(rotary)
    exact = {} if fresh is None else dict(fresh.named_buffers())
    if fresh is not None and getattr(rotary, "max_seq_len_cached", 0) > getattr(fresh, "max_seq_len_cached", 0):
        return fresh
    return fresh if all(name in exact and is_cast_of(own, exact[name]) for name, own in buffers) else rotary


def as_built(rotary: Any) -> Any:
    """A new module of the same class and configuration on the same device; None if the constructor fails."""
    device = next((buffer.device for buffer in rotary.buffers()), None)
    try:
        return type(rotary)(rotary.config).to(device)
    except Exception:  # a constructor with other parameters may raise anything
        return None


def is_cast_of(own: Tensor, exact: Tensor) -> bool:
    """Whether a buffer equals the exact one, or its cast to half precision."""
    casts = (exact.to(dtype).to(own.dtype) for dtype in (own.dtype, *HALF))
    return any(torch.equal(own, cast) for cast in casts)


class NoCosines:
    """What a disabled rotary module returns in place of cosines and sines."""

    def __iter__(self) -> Iterator[Tensor]:
        raise ForeignPatch(
            "Other attention than the patched one reads cosines and sines of this model, which its scheme replaces. "
            "Take a library that calls the patched one: LoRA for PEFT's AdaptionPrompt, nnsight for TransformerLens."
        )


NO_COSINES = NoCosines()


class DisabledRotary(nn.Module):
    """Mixin that disables a rotary module: no patched layer reads its cosines and sines."""

    def forward(self, x: Tensor, position_ids: Tensor) -> NoCosines:
        """Compute nothing."""
        return NO_COSINES


class AddsPositionCode(nn.Module):
    """Mixin of a model's first layer: adds the position codes of schemes that have some to the layer's input."""

    prefix = "Embedding"

    def forward(self, hidden_states: Tensor, *args: Any, **call: Any) -> Any:
        """The model's own forward on ``hidden_states`` plus the code of every position."""
        forward = call.get(KEYWORD) or current_forward(self.__dict__[ATTENTION].__dict__[OWNER])
        positions = call["position_ids"] if forward is None or forward.positions is None else forward.positions
        return super().forward(self.coded(hidden_states, positions), *args, **call)

    def coded(self, hidden_states: Tensor, positions: Tensor) -> Tensor:
        """``hidden_states [batch, token, width]`` plus the code of ``positions [batch or 1, token]``."""
        device = hidden_states.device
        code = scheme_on(self.__dict__[ATTENTION].scheme, device).embed(positions.to(device))
        if code is None:
            return hidden_states
        return hidden_states + padded_to_width(code, hidden_states.shape[-1]).to(hidden_states.dtype)


def keep_loader_name(cls: type[nn.Module], host: type[nn.Module]) -> None:
    """Append `LOADED_BY_NAME` to the name of a class that replaces a rotary module, so the loader recognises it."""
    if LOADED_BY_NAME in host.__name__ and LOADED_BY_NAME not in cls.__name__:
        cls.__name__ += LOADED_BY_NAME
