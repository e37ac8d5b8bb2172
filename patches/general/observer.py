"""Run a stand-in on a few tokens and record the calls of its attention, rotary modules and position tables.

Every attention module is called twice with the same input: as its layer calls it, and with an identity rotation. The
rotation follows from the queries and keys that both calls pass to the attention function.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from hf_posenc.core.rotation import rotate, table
from hf_posenc.forward.positions import KEYWORD
from hf_posenc.patches.general.attention import eager_of, goes_through_interface, parameters_of
from hf_posenc.patches.general.classes import above, below, own_class
from hf_posenc.patches.general.inline import attention_modules, run_inline
from hf_posenc.patches.general.observation import (
    AttentionObservation,
    RotationShape,
    identity_like,
    kind_of_call,
    rotated_first,
)

INTERFACE = f"{__name__.partition('.')[0]}_observer"
OBSERVER = "posenc_observer"


class ReceivedCall(NamedTuple):
    """Query, key and keywords, with the mask among them, that an attention module passed to its attention function."""

    query: Tensor
    key: Tensor
    keywords: dict[str, Any]


@dataclass(frozen=True)
class ObservedCall:
    """One call of an attention module.

    Attributes:
        arguments: arguments of the call, by parameter name.
        rotated: what the module passed to the attention function.
        silent: the same under an identity rotation.
        receives_keywords: whether the module receives the keywords of the base model's call.
    """

    arguments: Mapping[str, Any]
    rotated: ReceivedCall
    silent: ReceivedCall
    receives_keywords: bool


@dataclass
class Observer:
    """Settings and records of one forward pass of a stand-in.

    Attributes:
        positions: positions of the tokens, ``[1, token]``.
        intercepts: whether inline attention is intercepted; else the model's own code computes it, for comparison.
        measures: whether to call every attention module twice; a forward pass with a KV cache does not allow it.
        silent: whether rotary modules return an identity rotation, and position tables zeros.
        unmasked: whether to ignore the attention mask.
        restored: rotations to apply to the queries and keys of each attention module, by module name.
        rotations: calls of rotary modules, by the identity of the returned object.
        rotaries: shapes of the outputs of rotary modules, by module name; see `Observation.rotaries`.
        tables: row of position 0 in each position table, by module name.
        calls: the call of each attention module, by module name.
        repeated: names of attention modules that were called more than once.
        received: arguments that the attention function received in the current call.
        places: coordinates of the tokens, ``[1, token, axes]``, for restored rotations; None for a single axis.
    """

    positions: Tensor
    intercepts: bool = True
    measures: bool = False
    silent: bool = False
    unmasked: bool = False
    restored: Mapping[str, AttentionObservation] = field(default_factory=dict)
    rotations: dict[int, tuple[str, tuple[Any, ...], Mapping[str, Any], Any]] = field(default_factory=dict)
    rotaries: dict[str, dict[tuple[Any, ...], RotationShape]] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)
    calls: dict[str, ObservedCall] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)
    received: list[ReceivedCall] = field(default_factory=list)
    places: Tensor | None = None


def observed_attention(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **call: Any) -> Any:
    """Attention function of an observed model: records queries and keys, and computes eager attention."""
    observer, name = module.__dict__[OBSERVER]
    call.pop(KEYWORD, None)
    observer.received.append(ReceivedCall(query, key, {**call, "mask": attention_mask}))
    attention_mask = None if observer.unmasked else attention_mask
    restored = observer.restored.get(name)
    rotary = None if restored is None else restored.kind.rotary
    if restored is not None and rotary is not None:
        rotation = rotary.rotation if observer.places is None else replace(rotary.rotation, axes=rotary.axes)
        cos_sin = table(rotation, observer.positions if observer.places is None else observer.places)
        query, key = (rotate(rotated_first(x, restored), rotation, cos_sin) for x in (query, key))
        query = query * rotary.logit_scale
    return eager_of(own_class(type(module)))(module, query, key, value, attention_mask, **call)


def observed_inline_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, cache: Any, **call: Any
) -> Any:
    """`observed_attention` for inline attention, which also updates the KV cache."""
    if cache is not None and cache.new is not None:
        key, value = cache.cache.update(key, value, cache.layer)
    return observed_attention(module, query, key, value, mask, **call)


AttentionInterface.register(INTERFACE, observed_attention)
AttentionMaskInterface.register(INTERFACE, ALL_MASK_ATTENTION_FUNCTIONS["eager"])


@contextmanager
def observed(model: nn.Module, observer: Observer) -> Iterator[None]:
    """Inside the block, ``observer`` records the forward pass of a stand-in."""
    with torch.no_grad(), ExitStack() as hooks:
        attentions = {id(module) for module in attention_modules(model)}
        for name, module in model.named_modules():
            hooks.enter_context(_module_observed(observer, name, module, attends=id(module) in attentions))
        yield


@contextmanager
def _module_observed(observer: Observer, name: str, module: nn.Module, *, attends: bool) -> Iterator[None]:
    handles: list[Any] = []
    if attends:
        module.__dict__[OBSERVER] = observer, name
        if not goes_through_interface(module):
            own = own_class(type(module))
            module.__class__ = above(own, ObservedInline) if observer.intercepts else own
        hook = partial(_record_attention, observer, name)
        handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
    elif isinstance(module, nn.Embedding):
        module.__dict__[OBSERVER] = observer, name
        module.__class__ = below(own_class(type(module)), ObservedTable)  # type: ignore[assignment]
    elif not any(True for _ in module.parameters()):
        handles.append(module.register_forward_hook(partial(_record_rotation, observer, name), with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class ObservedInline(nn.Module):
    """Mixin for inline attention of an observed model: `observed_inline_attention` computes the attention."""

    prefix = "Inline"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward; see `run_inline`."""
        call = dict(zip(parameters_of(type(self)), args, strict=False)) | kwargs
        return run_inline(self, super().forward, call, partial(observed_inline_attention, self))


class ObservedTable(nn.Embedding):
    """Mixin for the embeddings of an observed model: records whether the rows it reads are positions."""

    prefix = "Observed"

    def forward(self, rows: Tensor) -> Tensor:
        """Rows of the embedding; zeros for a position table if the observer is silent."""
        observer, name = self.__dict__[OBSERVER]
        vectors = super().forward(rows)
        if isinstance(rows, Tensor) and rows.shape[-1:] == observer.positions.shape[-1:]:
            offset = rows.reshape(-1, rows.shape[-1])[:1] - observer.positions
            if bool((offset == offset[..., :1]).all()):
                observer.tables[name] = int(offset[0, 0])
                return torch.zeros_like(vectors) if observer.silent else vectors
        return vectors


def _record_rotation(observer: Observer, name: str, module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
    """Forward hook: record the output of a rotary module; return an identity rotation if the observer is silent."""
    identity = identity_like(out)
    if identity is None:
        return None
    cos = out if isinstance(out, Tensor) else out[0]
    axes = 2 if cos.shape[:2] == observer.positions.shape else 1
    if cos.shape[:axes] != observer.positions.shape[-axes:]:
        return None
    kind = kind_of_call(*args, **kwargs)
    observer.rotaries.setdefault(name, {})[kind] = RotationShape(axes, tuple(cos.shape[axes:]), isinstance(out, Tensor))
    observer.rotations[id(out)] = (name, args, kwargs, out)
    return identity if observer.silent else None


def _record_attention(observer: Observer, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
    """Forward pre-hook: call the module twice, with the arguments of its layer and with an identity rotation."""
    if observer.silent or not observer.measures:
        return
    if name in observer.calls:  # several layers share the module
        observer.repeated.add(name)
        return
    call = dict(zip(parameters_of(type(module)), args, strict=False)) | kwargs
    receives_keywords = call.pop(KEYWORD, False)
    call = {key: None if isinstance(value, Cache) else value for key, value in call.items()}  # two calls would fill it
    forward: Any = type(module).forward
    calls: list[ReceivedCall] = []
    observer.received = calls
    forward(module, **call)
    identities = {key: identity_like(value) for key, value in call.items() if id(value) in observer.rotations}
    observer.silent = True
    try:
        forward(module, **{**call, **identities})
    finally:
        observer.silent = False
    observer.received = []
    if len(calls) == 2:
        observer.calls[name] = ObservedCall(call, calls[0], calls[1], receives_keywords)


def takes_positions(model: nn.Module) -> bool:
    """Whether the forward of a base model has the parameter ``position_ids``."""
    return "position_ids" in inspect.signature(type(model).forward).parameters


def inputs_of(model: Any, positions: Tensor) -> dict[str, Any]:
    """Keyword arguments of a base model for random tokens at ``positions [1, token]``."""
    vocabulary = model.get_input_embeddings().num_embeddings
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(min(3, vocabulary - 1), vocabulary, positions.shape, generator=generator).to(positions.device)
    inputs: dict[str, Any] = {"input_ids": ids, KEYWORD: True}
    languages = torch.zeros(len(ids), dtype=torch.long, device=ids.device)
    optional = {"position_ids": positions, "use_cache": False, "lang_ids": languages}
    parameters = inspect.signature(type(model).forward).parameters
    return inputs | {name: value for name, value in optional.items() if name in parameters}
