"""Patched attention for classes that pass their queries and keys to the `AttentionInterface` of transformers.

The model's own forward runs unchanged, with an identity rotation and a KV cache that stores nothing. It calls the
attention function that its configuration names, `attend_as_patched`, which this module registers with transformers.
Norms, clipping, fused projections and gates therefore stay the model's own.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache
from transformers.models.bert.modeling_bert import eager_attention_forward

from hf_posenc.forward.current_forward import OWNER, current_forward
from hf_posenc.forward.engine_backend import AttentionOutput
from hf_posenc.forward.host_calls import CACHE_NAMES, forward_parameters
from hf_posenc.forward.positions import KEYWORD, ForwardContext
from hf_posenc.patches.general.classes import own_class
from hf_posenc.patches.general.observation import AttentionObservation, rotated_first
from hf_posenc.patches.shared.lookup_attention import PlacedAttention

INTERFACE = __name__.partition(".")[0]  # name of the attention function in the configurations of patched layers
CALL = "posenc_call"  # keyword that carries a `LayerCall` through the model's own forward
OBSERVATION = "posenc_observation"  # attribute of a patched base model: its `Observation`
OBSERVED = "posenc_observed"  # attribute of a patched module: its `AttentionObservation`
CONFIGS = "posenc_layer_configs"  # attribute of a patched base model: configurations for its attention modules


@dataclass(slots=True)
class LayerCall:
    """Inputs of `attend_as_patched` that the model's own forward does not pass on.

    Attributes:
        hidden: input of the layer, ``[batch, query, width]``.
        cache: KV cache of the call, which may be a paged one.
        forward: context of the base model's forward pass; None if the layer is called alone.
        position_ids: positions of the queries, ``[batch or 1, query]``, or None.
        captured: list that receives queries and keys; attention is then skipped. None in a normal call.
    """

    hidden: Tensor
    cache: Any
    forward: ForwardContext | None = None
    position_ids: Tensor | None = None
    captured: list[Tensor] | None = None


class CacheProxy:
    """Proxy of a KV cache for the model's own forward: ``update`` stores nothing, all else reaches the cache."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["cache"], name)

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the new keys and values unchanged: `attend_as_patched` caches them."""
        return keys, values


def attend_as_patched(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    **host: Any,
) -> AttentionOutput:
    """Attention function of patched layers: position-aware attention, with the shapes of transformers' functions."""
    call: LayerCall = host.pop(CALL)
    attributes: dict[str, Any] = module.__dict__
    observation: AttentionObservation = attributes[OBSERVED]
    if observation.first:
        query, key = rotated_first(query, observation), rotated_first(key, observation)
    if call.captured is not None:
        call.captured += [query, key]
        return torch.zeros_like(value).transpose(1, 2).repeat_interleave(query.shape[1] // value.shape[1], 2), None
    attributes["posenc_dropout"] = dropout
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    attributes["posenc_scaling"] = scaling / observation.softmax_factor
    if call.forward is not None:
        host[KEYWORD] = call.forward
        host["position_ids"] = call.forward.positions  # the model may pass other position ids
    elif call.position_ids is not None:
        host["position_ids"] = call.position_ids
    mixed, weights = module.attend(
        query, key, value, hidden=call.hidden, cache=call.cache, mask=attention_mask, host=host
    )
    return mixed.contiguous(), weights  # attention functions of transformers return contiguous tensors


AttentionInterface.register(INTERFACE, attend_as_patched)


class InterceptedAttention(PlacedAttention):
    """Mixin for attention classes that use `AttentionInterface`: `attend_as_patched` computes the attention."""

    prefix = "Patched"
    score_factor = "posenc_scaling"  # the softmax scale that the model's own forward passes
    heeded_keywords = frozenset(("softcap", "s_aux", "deterministic"))

    @property
    def host_eager(self) -> Callable[..., Any]:  # type: ignore[override]
        """The eager attention function of the model."""
        return eager_of(own_class(type(self)))

    @property
    def backend(self) -> str:
        """The attention implementation of the model; this layer's own configuration names `INTERFACE`."""
        return self.__dict__[OWNER].config._attn_implementation

    @property
    def config(self) -> Any:
        """A copy of the model's configuration that names `INTERFACE` as the attention function, one for all layers."""
        original, copies = self.__dict__["config"], self.__dict__[OWNER].__dict__.setdefault(CONFIGS, [])
        for owned, copied in copies:  # deep copies and pickles keep identity; a key of id() would be lost
            if owned is original:
                return copied
        copied = copy.copy(original)
        copied._attn_implementation_internal = INTERFACE
        copies.append((original, copied))
        return copied

    @config.setter
    def config(self, value: Any) -> None:
        self.__dict__["config"] = value

    @property
    def is_causal(self) -> bool:
        """Whether tokens attend to earlier tokens only, as observed."""
        return bool(self.__dict__[OWNER].__dict__[OBSERVATION].causal)

    @is_causal.setter
    def is_causal(self, value: bool) -> None:
        self.__dict__["is_causal"] = value

    @property
    def window(self) -> int | None:
        return self.__dict__[OBSERVED].kind.window

    @property
    def chunk(self) -> int | None:
        return self.__dict__[OBSERVED].kind.chunk

    @property
    def live_dropout(self) -> float:
        return self.__dict__.get("posenc_dropout", 0.0)

    def project_query(self, x: Tensor) -> Tensor:
        return self._captured_projections(x)[0][0]

    def project_key(self, x: Tensor) -> Tensor:
        return self._captured_projections(x)[1][0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward without its rotation; the scheme updates the KV cache."""
        observation: AttentionObservation = self.__dict__[OBSERVED]
        call = {**dict(zip(observation.parameters, args, strict=False)), **kwargs} if args else kwargs
        cache = None
        for name in CACHE_NAMES:
            argument = call.get(name)
            if isinstance(argument, Cache) or (argument is not None and name in observation.parameters):
                cache, call[name] = argument, CacheProxy(argument)
        if CALL not in call:
            context = call.get(KEYWORD) if observation.receives_keywords else current_forward(self.__dict__[OWNER])
            call[CALL] = LayerCall(call[observation.parameters[0]], cache, context, call.get("position_ids"))
        return own_class(type(self)).forward(self, **call)

    def _captured_projections(self, x: Tensor) -> list[Tensor]:
        """Queries and keys of vectors ``[n, width]``, each ``[1, heads, n, head_dim]``."""
        call = LayerCall(x[None], None, captured=[])
        zeros = torch.zeros(1, len(x), dtype=torch.long, device=x.device)
        self.__dict__[OBSERVED].run(self.__dict__[OWNER], x[None], zeros, None, **{CALL: call})
        return call.captured  # type: ignore[return-value]


def eager_of(cls: type[nn.Module]) -> Callable[..., Any]:
    """The eager attention function in the module of a class or of its bases; BERT's if there is none."""
    for base in cls.__mro__:
        function = getattr(sys.modules.get(base.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    return eager_attention_forward


def goes_through_interface(module: nn.Module) -> bool:
    """Whether a module gets its attention function from `AttentionInterface`."""
    forward: Any = inspect.unwrap(own_class(type(module)).forward)
    return "ALL_ATTENTION_FUNCTIONS" in getattr(getattr(forward, "__code__", None), "co_names", ())


def parameters_of(cls: type[nn.Module]) -> tuple[str, ...]:
    """Parameter names of an attention class's forward, the input first."""
    return forward_parameters(own_class(cls))
