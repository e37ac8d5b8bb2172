"""Run a stand-in on a few tokens and note what its attention, rotary modules and position tables are called with.

Every attention module is called twice with the same input, as its layer calls it and with a rotation by nothing; the
queries and keys that both calls hand to the attention function give the rotation.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from hf_posenc.core.rotation import rotate, table
from hf_posenc.forward.positions import KEYWORD
from hf_posenc.patches.general.attention import eager_of, goes_through_interface, parameters_of
from hf_posenc.patches.general.classes import above, below, own_class
from hf_posenc.patches.general.inline import ATTEND, Inline, attention_modules
from hf_posenc.patches.general.observation import (
    AttentionObservation,
    RotationShape,
    identity_like,
    kind_of_call,
    rotated_first,
)

INTERFACE = f"{__name__.partition('.')[0]}_observer"
OBSERVER = "posenc_observer"

Handed = tuple[Tensor, Tensor, dict[str, Any]]


@dataclass(frozen=True)
class ObservedCall:
    """One call of an attention module.

    Attributes:
        arguments: by the names of its parameters.
        rotated: query, key and keywords that it handed to the attention function.
        silent: what it handed over with a rotation by nothing.
        receives_keywords: whether a keyword of the base model's call was handed on.
    """

    arguments: Mapping[str, Any]
    rotated: Handed
    silent: Handed
    receives_keywords: bool


@dataclass
class Observer:
    """Notes of a run of a stand-in, or what that is to do in one.

    Attributes:
        positions: of the tokens, ``[1, token]``.
        measures: whether to call every attention module twice, which not every forward pass allows.
        silent: whether rotary modules rotate by nothing, and position tables read nothing.
        unmasked: whether every token sees every other, whatever the mask.
        restored: rotations to apply to the queries and keys of each attention module, by its name.
        rotations: by identity of what they returned, calls of rotary modules.
        rotaries: by name, what rotary modules return; see `Observation.rotaries`.
        tables: by name, the row of position 0 of position tables.
        calls: by name, the call of each attention module.
        repeated: names of attention modules that were called more than once.
        handed: what the attention function was given in the present call.
        places: coordinates of the tokens, ``[1, token, axes]``, for restored rotations; None where there is one.
    """

    positions: Tensor
    measures: bool = False
    silent: bool = False
    unmasked: bool = False
    restored: Mapping[str, AttentionObservation] = field(default_factory=dict)
    rotations: dict[int, tuple[str, tuple[Any, ...], Mapping[str, Any], Any]] = field(default_factory=dict)
    rotaries: dict[str, dict[tuple[Any, ...], RotationShape]] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)
    calls: dict[str, ObservedCall] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)
    handed: list[Handed] = field(default_factory=list)
    places: Tensor | None = None


def hand_over(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **call: Any) -> Any:
    """The attention function of an observed model: notes queries and keys, and attends eagerly."""
    observer, name = module.__dict__[OBSERVER]
    call.pop(KEYWORD, None)
    observer.handed.append((query, key, {**call, "mask": attention_mask}))
    attention_mask = None if observer.unmasked else attention_mask
    layer = observer.restored.get(name)
    rotary = None if layer is None else layer.kind.rotary
    if layer is not None and rotary is not None:
        rotation = rotary.rotation if observer.places is None else replace(rotary.rotation, axes=rotary.axes)
        turns = table(rotation, observer.positions if observer.places is None else observer.places)
        query, key = (rotate(rotated_first(x, layer), rotation, turns) for x in (query, key))
        query = query * rotary.logit_scale
    return eager_of(own_class(type(module)))(module, query, key, value, attention_mask, **call)


def hand_over_inline(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, cache: Any, **call: Any
) -> Any:
    """`hand_over` for attention that is computed inline; the KV cache takes the new keys."""
    if cache is not None and cache.new is not None:
        key, value = cache.cache.update(key, value, cache.layer)
    return hand_over(module, query, key, value, mask, **call)


AttentionInterface.register(INTERFACE, hand_over)
AttentionMaskInterface.register(INTERFACE, ALL_MASK_ATTENTION_FUNCTIONS["eager"])


@contextmanager
def observed(model: nn.Module, observer: Observer) -> Iterator[None]:
    """Take notes of what a stand-in does while the block runs it."""
    with torch.no_grad(), ExitStack() as hooks:
        attentions = {id(module) for module in attention_modules(model)}
        for name, module in model.named_modules():
            hooks.enter_context(_noted(observer, name, module, attends=id(module) in attentions))
        yield


@contextmanager
def _noted(observer: Observer, name: str, module: nn.Module, *, attends: bool) -> Iterator[None]:
    handles: list[Any] = []
    if attends:
        module.__dict__[OBSERVER] = observer, name
        if not goes_through_interface(module):
            module.__dict__[ATTEND] = hand_over_inline
            module.__class__ = above(own_class(type(module)), Inline)
        note = partial(_note_attention, observer, name)
        handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
    elif isinstance(module, nn.Embedding):
        module.__dict__[OBSERVER] = observer, name
        module.__class__ = below(own_class(type(module)), ObservedTable)  # type: ignore[assignment]
    elif not any(True for _ in module.parameters()):
        handles.append(module.register_forward_hook(partial(_note_rotation, observer, name), with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class ObservedTable(nn.Embedding):
    """Mixin of an embedding of an observed model: notes whether its rows are positions."""

    prefix = "Observed"

    def forward(self, rows: Tensor) -> Tensor:
        """As of `nn.Embedding`; zero where the observer is to silence a position table."""
        observer, name = self.__dict__[OBSERVER]
        found = super().forward(rows)
        if isinstance(rows, Tensor) and rows.shape[-1:] == observer.positions.shape[-1:]:
            offset = rows.reshape(-1, rows.shape[-1])[:1] - observer.positions
            if bool((offset == offset[..., :1]).all()):
                observer.tables[name] = int(offset[0, 0])
                return torch.zeros_like(found) if observer.silent else found
        return found


def _note_rotation(observer: Observer, name: str, module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
    nothing = identity_like(out)
    if nothing is None:
        return None
    one = out if isinstance(out, Tensor) else out[0]
    axes = 2 if one.shape[:2] == observer.positions.shape else 1
    if one.shape[:axes] != observer.positions.shape[-axes:]:
        return None
    kind = kind_of_call(*args, **kwargs)
    observer.rotaries.setdefault(name, {})[kind] = RotationShape(axes, tuple(one.shape[axes:]), isinstance(out, Tensor))
    observer.rotations[id(out)] = (name, args, kwargs, out)
    return nothing if observer.silent else None


def _note_attention(observer: Observer, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
    """Call the module twice before its layer does: as it will be called, and with a rotation by nothing."""
    if observer.silent or not observer.measures:
        return
    if name in observer.calls:  # a module that serves several layers
        observer.repeated.add(name)
        return
    call = dict(zip(parameters_of(type(module)), args, strict=False)) | kwargs
    receives_keywords = call.pop(KEYWORD, False)
    call = {key: None if isinstance(value, Cache) else value for key, value in call.items()}  # it would fill up
    forward: Any = type(module).forward
    handed: list[Handed] = []
    observer.handed = handed
    forward(module, **call)
    nothing = {key: identity_like(value) for key, value in call.items() if id(value) in observer.rotations}
    observer.silent = True
    try:
        forward(module, **{**call, **nothing})
    finally:
        observer.silent = False
    observer.handed = []
    if len(handed) == 2:
        observer.calls[name] = ObservedCall(call, handed[0], handed[1], receives_keywords)


def takes_positions(model: nn.Module) -> bool:
    """Whether a base model takes the positions of its tokens."""
    return "position_ids" in inspect.signature(type(model).forward).parameters


def inputs_of(model: Any, positions: Tensor) -> dict[str, Any]:
    """A call of a base model on as many tokens as there are ``positions [1, token]``."""
    vocabulary = model.get_input_embeddings().num_embeddings
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(min(3, vocabulary - 1), vocabulary, positions.shape, generator=draw).to(positions.device)
    given: dict[str, Any] = {"input_ids": ids, KEYWORD: True}
    if takes_positions(model):
        given["position_ids"] = positions
    if "use_cache" in inspect.signature(type(model).forward).parameters:
        given["use_cache"] = False
    if "lang_ids" in inspect.signature(type(model).forward).parameters:
        given["lang_ids"] = torch.zeros(len(ids), dtype=torch.long, device=ids.device)
    return given
