"""What the general adapter knows of a model: which modules keep position, and how they are called.

Plain values, with modules by their names in the base model: one observation serves all models of a class and
configuration, their copies, and their patched state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.core.geometry import LayerKind
from hf_posenc.patches.general.classes import is_made
from hf_posenc.patches.shared.rotary_host import as_configured


class Stand(Enum):
    """What stands in an observed call for a tensor that every call has its own of."""

    HIDDEN = "the layer's input"
    POSITIONS = "positions of its tokens"
    MASK = "the attention mask"
    CHANNELS_FIRST = "the layer's input, channels before tokens"
    BASE = "the base model"


@dataclass(frozen=True)
class RotationShape:
    """Shape of cosines and sines: how many axes of positions they have, the sizes of the others, whether complex."""

    axes: int
    trailing: tuple[int, ...]
    complex: bool


def kind_of_call(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """What a call of a rotary module says beside tensors: the type of layer, where a model has several."""
    return tuple(value for value in (*args, *kwargs.values()) if isinstance(value, (str, int)))


Given = Mapping[Stand, Any]


def rotation_of(given: Given, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What the rotary module of this name makes of the positions, in a call with `Stand` in the place of tensors."""
    rotary = given[Stand.BASE].get_submodule(name)
    module = rotary if is_made(type(rotary)) else as_configured(rotary)
    return module(*(filled(value, given) for value in args), **filled_all(kwargs, given))


def open_mask(given: Given, axes: int, value: float, dtype: torch.dtype) -> Tensor:
    """The mask of a call; where it has none, one of so many axes that holds this value and hides nothing."""
    if given[Stand.MASK] is not None:
        return given[Stand.MASK]
    hidden = given[Stand.HIDDEN]
    return torch.full((*(1,) * (axes - 1), hidden.shape[1]), value, dtype=dtype, device=hidden.device)


def zeros(given: Given, width: int) -> Tensor:
    """Vectors of the tokens beside the layer's input, of another width."""
    return given[Stand.HIDDEN].new_zeros(*given[Stand.HIDDEN].shape[:2], width)


def repeated(given: Given, axes: int, value: float) -> Tensor:
    """Numbers that belong to positions, such as a factor of their queries: that of the first one, for all tokens."""
    return given[Stand.HIDDEN].new_full((1,) * axes, value)


def filled(value: Any, given: Given) -> Any:
    """A value of a call, or what is given for it; see `AttentionObservation.call`."""
    if isinstance(value, partial):
        return value(given)
    if isinstance(value, dict):
        return filled_all(value, given)
    return given[value] if isinstance(value, Stand) else value


def filled_all(call: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """The arguments of a call, with what is given in its place."""
    return {name: filled(value, given) for name, value in call.items()}


@dataclass(frozen=True)
class AttentionObservation:
    """One self-attention module and the call that its layer makes.

    Attributes:
        name: of the module.
        call: every argument by the name of its parameter, with `Stand` in the place of tensors, or a function of what
            is given for these.
        kind: its heads, what it does to queries and keys, and how far it sees.
        first: the first rotated channel of a head.
        width: channels of its input.
        parameters: names of what it takes, its input first.
        inline: whether the module computes attention itself, without `AttentionInterface`.
        receives_keywords: whether its layer hands it the keywords of the base model's call.
        softmax_factor: what the RoPE scaling has put into its own scale of scores; a factor of ``kind.rotary`` here.
        held: its attributes that the configuration decides, as a new module has them.
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
    held: Mapping[str, Any] = field(default_factory=dict)

    @property
    def looks_up(self) -> bool:
        """Whether the module has to look up the forward pass that it is in: no keyword tells it."""
        return self.inline or not self.receives_keywords

    @property
    def channels_first(self) -> bool:
        """Whether the module reads and returns ``[batch, width, token]``."""
        return Stand.CHANNELS_FIRST in self.call.values()

    def run(
        self,
        base: nn.Module,
        hidden: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        extra: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """What the module returns for ``hidden [1, token, self.width]`` at ``positions [1, token]``, on its own."""
        first = {Stand.HIDDEN: hidden, Stand.CHANNELS_FIRST: hidden.transpose(1, 2)}
        call = filled_all(self.call, {**first, Stand.POSITIONS: positions, Stand.MASK: mask, Stand.BASE: base})
        module = base.get_submodule(self.name)
        if not self.inline or is_made(type(module)):  # an inline forward of the model's own takes no positions
            call["position_ids"] = positions if call.get("position_ids") is None else call["position_ids"]
        return module(**call, **extra)


@dataclass(frozen=True)
class Observation:
    """How a model knows position.

    Attributes:
        attentions: self-attention modules in the order of the layers.
        rotaries: names of the modules that turn positions into cosines and sines, and the shape of what each returns in
            calls of every kind (see `kind_of_call`).
        tables: names of position tables, and the row of position 0 in each.
        rows: of each table, as the configuration decides it.
        numbered_from: the position id that the model gives to its first token itself; None where it takes no ids.
        token_types: whether it reads token types from a buffer, which ends where its table does.
        causal: whether tokens attend to earlier ones only.
        mixes_otherwise: whether other modules than attention mix tokens, and so carry their order: state-space, linear
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
        """Numbers of the layers of attention modules, where others have none; counted where layers have several."""
        found = [next((int(part) for part in one.name.split(".") if part.isdigit()), 0) for one in self.attentions]
        return found if len(set(found)) == len(found) else list(range(len(found)))


def rotated_first(x: Tensor, layer: AttentionObservation) -> Tensor:
    """Queries or keys ``[…, head_dim]`` with the channels that the model rotates before the others."""
    if layer.first == 0 or layer.kind.rotary is None:
        return x
    start, end = layer.first, layer.first + layer.kind.rotary.rotation.dims
    return torch.cat((x[..., start:end], x[..., :start], x[..., end:]), dim=-1)


def identity_like(rotation: Any) -> Any:
    """A rotation by nothing, of the shapes of ``rotation``; None where that is no rotation.

    A rotation is a complex tensor of one modulus, or a pair of real ones whose squares add up to a constant.
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


SILENT = "posenc_silent"
"""On a silent rotary module: the shape of what it returns, by kind of call."""


class SilentRotary(nn.Module):
    """Mixin of a rotary module: returns cosines of one and sines of zero, which rotate nothing."""

    prefix = "Silent"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """A rotation by nothing for all positions, of the shapes that the model's own would have, without memory."""
        positions = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and not x.is_floating_point())
        hidden = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()), None)
        own: RotationShape = self.__dict__[SILENT][kind_of_call(*args, **kwargs)]
        dtype = torch.complex64 if own.complex else torch.float32 if hidden is None else hidden.dtype
        shape = (*positions.shape[-own.axes :], *own.trailing)
        one = torch.ones((), dtype=dtype, device=positions.device).expand(shape)
        return one if own.complex else (one, torch.zeros((), dtype=dtype, device=positions.device).expand(shape))
