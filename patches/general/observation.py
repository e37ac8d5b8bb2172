"""Values that describe where a model keeps position: its attention modules, their calls, rotary modules and tables.

The values refer to modules by their names in the base model. One observation therefore serves all models of a class
and configuration, their copies, and their patched state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.core.geometry import LayerKind
from hf_posenc.patches.general.classes import is_made
from hf_posenc.patches.shared.rotary_host import as_configured


class Stand(Enum):
    """Placeholder in an observed call for a tensor that differs from call to call."""

    HIDDEN = "the layer's input"
    POSITIONS = "positions of its tokens"
    MASK = "the attention mask"
    CHANNELS_FIRST = "the layer's input, channels before tokens"
    BASE = "the base model"


@dataclass(frozen=True)
class RotationShape:
    """Shape of the cosines and sines of a rotary module.

    Attributes:
        axes: number of leading axes that the positions have.
        trailing: sizes of the other axes.
        complex: whether the module returns one complex tensor.
    """

    axes: int
    trailing: tuple[int, ...]
    complex: bool


def kind_of_call(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The strings and integers of a rotary module's call: the layer type in models that have several."""
    return tuple(value for value in (*args, *kwargs.values()) if isinstance(value, (str, int)))


CallInputs = Mapping[Stand, Any]


def rotation_of(inputs: CallInputs, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Output of the rotary module ``name`` for a call whose arguments contain `Stand` placeholders."""
    rotary = inputs[Stand.BASE].get_submodule(name)
    module = rotary if is_made(type(rotary)) else as_configured(rotary)
    return module(*(filled(value, inputs) for value in args), **filled_all(kwargs, inputs))


def open_mask(inputs: CallInputs, axes: int, value: float, dtype: torch.dtype) -> Tensor:
    """The mask of a call, or a mask with ``axes`` axes full of ``value``, which hides nothing."""
    if inputs[Stand.MASK] is not None:
        return inputs[Stand.MASK]
    hidden = inputs[Stand.HIDDEN]
    return torch.full((*(1,) * (axes - 1), hidden.shape[1]), value, dtype=dtype, device=hidden.device)


def zeros(inputs: CallInputs, width: int) -> Tensor:
    """Zeros ``[batch, token, width]`` for an argument with one vector per token."""
    return inputs[Stand.HIDDEN].new_zeros(*inputs[Stand.HIDDEN].shape[:2], width)


def repeated(inputs: CallInputs, axes: int, value: float) -> Tensor:
    """The number of position 0 for all positions, in place of an argument such as a query factor per position."""
    return inputs[Stand.HIDDEN].new_full((1,) * axes, value)


def filled(value: Any, inputs: CallInputs) -> Any:
    """An argument of an observed call, with its placeholders filled; see `AttentionObservation.call`."""
    if isinstance(value, partial):
        return value(inputs)
    if isinstance(value, dict):
        return filled_all(value, inputs)
    return inputs[value] if isinstance(value, Stand) else value


def filled_all(call: Mapping[str, Any], inputs: CallInputs) -> dict[str, Any]:
    """The arguments of an observed call, with all placeholders filled."""
    return {name: filled(value, inputs) for name, value in call.items()}


@dataclass(frozen=True)
class AttentionObservation:
    """One self-attention module and the call that its layer makes.

    Attributes:
        name: name of the module in the base model.
        call: arguments by parameter name; a tensor is replaced by a `Stand` or by a function of all filled `Stand`.
        kind: heads, rotation and reach (window or chunk) of the module.
        first: first rotated channel of a head.
        width: channels of the input.
        parameters: names of the parameters of its forward, the input first.
        inline: whether the module computes attention itself, without `AttentionInterface`.
        receives_keywords: whether its layer passes on the keywords of the base model's call.
        softmax_factor: factor that the RoPE scaling multiplies into the module's scale; ``kind.rotary`` includes it.
        attributes: attributes that follow from the configuration, with their values in a new module.
    """

    name: str
    call: Mapping[str, Any]
    kind: LayerKind
    first: int = 0
    width: int = 0
    parameters: tuple[str, ...] = ()
    inline: bool = False
    receives_keywords: bool = True
    softmax_factor: float = 1.0
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def looks_up(self) -> bool:
        """Whether the module must look up its `ForwardContext`, because no keyword of the call carries it."""
        return self.inline or not self.receives_keywords

    @property
    def channels_first(self) -> bool:
        """Whether the module reads and returns ``[batch, width, token]``."""
        return Stand.CHANNELS_FIRST in self.call.values()

    def run(self, base: nn.Module, hidden: Tensor, positions: Tensor, mask: Tensor | None, **extra: Any) -> Any:
        """Output of the module alone, for ``hidden [1, token, self.width]`` at ``positions [1, token]``."""
        inputs = {Stand.HIDDEN: hidden, Stand.CHANNELS_FIRST: hidden.transpose(1, 2)}
        call = filled_all(self.call, {**inputs, Stand.POSITIONS: positions, Stand.MASK: mask, Stand.BASE: base})
        module = base.get_submodule(self.name)
        if not self.inline or is_made(type(module)):  # an unpatched inline forward takes no positions
            call["position_ids"] = positions if call.get("position_ids") is None else call["position_ids"]
        return module(**call, **extra)


@dataclass(frozen=True)
class Observation:
    """Where a model keeps position.

    Attributes:
        attentions: self-attention modules in the order of the layers.
        rotaries: shapes of the outputs of each rotary module, by module name and kind of call (see `kind_of_call`).
        tables: row of position 0 in each position table, by module name.
        rows: number of rows of each table that the configuration defines.
        numbered_from: position id that the model itself gives its first token; None if it takes no ids.
        token_types: whether the model reads token types from a buffer, which ends where its table does.
        causal: whether tokens attend to earlier tokens only.
        mixes_otherwise: whether modules other than attention mix tokens, and so carry their order: state-space, linear
            and convolution layers.
    """

    attentions: tuple[AttentionObservation, ...]
    rotaries: Mapping[str, Mapping[tuple[Any, ...], RotationShape]] = field(default_factory=dict)
    tables: Mapping[str, int] = field(default_factory=dict)
    causal: bool = True
    mixes_otherwise: bool = False
    numbered_from: int | None = None
    token_types: bool = False
    rows: Mapping[str, int] = field(default_factory=dict)

    @property
    def layer_numbers(self) -> list[int]:
        """Layer number of each attention module; a running count if a layer has several."""
        numbers = [next((int(part) for part in one.name.split(".") if part.isdigit()), 0) for one in self.attentions]
        return numbers if len(set(numbers)) == len(numbers) else list(range(len(numbers)))


def rotated_first(x: Tensor, layer: AttentionObservation) -> Tensor:
    """Queries or keys ``[…, head_dim]`` with the rotated channels moved to the front."""
    if layer.first == 0 or layer.kind.rotary is None:
        return x
    start, end = layer.first, layer.first + layer.kind.rotary.rotation.dims
    return torch.cat((x[..., start:end], x[..., :start], x[..., end:]), dim=-1)


def identity_like(rotation: Any) -> Any:
    """Identity rotation with the shapes of ``rotation``; None if that is not a rotation.

    A rotation is a complex tensor of constant modulus, or a pair of real tensors whose squares add up to a constant.
    """
    if isinstance(rotation, Tensor) and rotation.is_complex():
        return torch.ones_like(rotation) if _constant(rotation.abs()) else None
    if not isinstance(rotation, (tuple, list)) or len(rotation) != 2:
        return None
    cos, sin = rotation
    if not (isinstance(cos, Tensor) and isinstance(sin, Tensor) and cos.shape == sin.shape and cos.is_floating_point()):
        return None
    return (torch.ones_like(cos), torch.zeros_like(sin)) if _constant(cos.double() ** 2 + sin.double() ** 2) else None


def _constant(size: Tensor) -> bool:
    return size.numel() > 0 and bool((size.amax() - size.amin()) <= 0.02 * size.amax().clamp(min=1e-6))


SHAPES = "posenc_rotation_shapes"
"""Attribute of an `IdentityRotary`: the shape of its output, by kind of call."""


class IdentityRotary(nn.Module):
    """Mixin of a rotary module: returns an identity rotation, with cosines of one and sines of zero."""

    prefix = "Identity"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Identity rotation for all positions, with the shapes of the model's own rotation, without memory."""
        positions = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and not x.is_floating_point())
        hidden = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()), None)
        layout: RotationShape = self.__dict__[SHAPES][kind_of_call(*args, **kwargs)]
        shape, device = (*positions.shape[-layout.axes :], *layout.trailing), positions.device
        if layout.complex:
            return torch.ones((), dtype=torch.complex64, device=device).expand(shape)
        dtype = torch.float32 if hidden is None else hidden.dtype
        one, zero = (torch.full((), number, dtype=dtype, device=device) for number in (1, 0))
        return one.expand(shape), zero.expand(shape)
