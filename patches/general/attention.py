"""Attention of any class that hands its queries and keys to `AttentionInterface`: the model's own forward, intercepted.

The forward runs as it is, with a rotation by nothing and a KV cache that takes nothing, and calls the attention
function that its configuration names: `attend_as_patched`, registered here with transformers, which goes on with the
new queries, keys and values. Norms, clipping, fused projections and gates are therefore those of the model, whatever
they are.
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

INTERFACE = __name__.partition(".")[0]  # name of the attention function, in the configurations that patched layers see
CALL = "posenc_call"  # keyword by which a layer's call travels through the model's own forward
OBSERVATION = "posenc_observation"  # of a patched base model: its `Observation`
OBSERVED = "posenc_observed"  # of a patched module: its `AttentionObservation`
CONFIGS = "posenc_layer_configs"  # of a patched base model: its configurations as attention modules see them


@dataclass(slots=True)
class LayerCall:
    """What a patched layer's own forward is not given, kept for `attend_as_patched`.

    Attributes:
        hidden: input of the layer, ``[batch, query, width]``.
        cache: the call's KV cache, a paged one included.
        forward: context of the forward pass of the base model, if it is one; its own forward may not hand it on.
        position_ids: likewise, ``[batch or 1, query]``.
        captured: takes queries and keys, where they are asked for and nothing is to be attended to.
    """

    hidden: Tensor
    cache: Any
    forward: ForwardContext | None = None
    position_ids: Tensor | None = None
    captured: list[Tensor] | None = None


class Untouched:
    """A KV cache as the model's own forward sees it: it can be asked anything, and hands new keys back unchanged."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["cache"], name)

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The new keys and values alone: `attend_as_patched` caches them."""
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
    """The attention function of patched layers: takes over from the model's own forward. Shapes as of transformers'."""
    call: LayerCall = host.pop(CALL)
    own: dict[str, Any] = module.__dict__
    layer: AttentionObservation = own[OBSERVED]
    if layer.first:
        query, key = rotated_first(query, layer), rotated_first(key, layer)
    if call.captured is not None:
        call.captured += [query, key]
        return torch.zeros_like(value).transpose(1, 2).repeat_interleave(query.shape[1] // value.shape[1], 2), None
    own["posenc_dropout"] = dropout
    own["posenc_scaling"] = (query.shape[-1] ** -0.5 if scaling is None else scaling) / layer.softmax_factor
    if call.forward is not None:
        host[KEYWORD] = call.forward
        host["position_ids"] = call.forward.positions  # a model may number its tokens otherwise
    elif call.position_ids is not None:
        host["position_ids"] = call.position_ids
    mixed, weights = module.attend(
        query, key, value, hidden=call.hidden, cache=call.cache, mask=attention_mask, host=host
    )
    return mixed.contiguous(), weights  # as attention functions of transformers return it


AttentionInterface.register(INTERFACE, attend_as_patched)


class InterceptedAttention(PlacedAttention):
    """Mixin of a model's own attention class that goes through `AttentionInterface`."""

    prefix = "Patched"
    score_factor = "posenc_scaling"  # as the model's own forward hands it over
    heeded_keywords = frozenset(("softcap", "s_aux", "deterministic"))
    scaling = None  # type: ignore[assignment]  # of a class that has none; others have it on the instance

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
        """The model's configuration, in a copy that names `INTERFACE` as the attention function; one for all layers."""
        real, known = self.__dict__["config"], self.__dict__[OWNER].__dict__.setdefault(CONFIGS, {})
        found = known.get(id(real))
        if found is None or found[0] is not real:
            found = known[id(real)] = real, config_of_layers(real)
        return found[1]

    @config.setter
    def config(self, value: Any) -> None:
        self.__dict__["config"] = value

    @property
    def is_causal(self) -> bool:
        """Whether tokens attend to earlier ones only, as it was observed."""
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
        return self._captured(x)[0][0]

    def project_key(self, x: Tensor) -> Tensor:
        return self._captured(x)[1][0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward without its rotation, and a KV cache that it leaves to the scheme."""
        layer: AttentionObservation = self.__dict__[OBSERVED]
        call = {**dict(zip(layer.parameters, args, strict=False)), **kwargs} if args else kwargs
        cache = None
        for name in CACHE_NAMES:
            held = call.get(name)
            if isinstance(held, Cache) or (held is not None and name in layer.parameters):
                cache, call[name] = held, Untouched(held)
        if CALL not in call:
            known = call.get(KEYWORD) if layer.receives_keywords else current_forward(self.__dict__[OWNER])
            call[CALL] = LayerCall(call[layer.parameters[0]], cache, known, call.get("position_ids"))
        return own_class(type(self)).forward(self, **call)

    def _captured(self, x: Tensor) -> list[Tensor]:
        """Query and key of vectors ``[n, width]`` as their layer projects them, each ``[1, heads, n, head_dim]``."""
        call = LayerCall(x[None], None, captured=[])
        zeros = torch.zeros(1, len(x), dtype=torch.long, device=x.device)
        self.__dict__[OBSERVED].run(self.__dict__[OWNER], x[None], zeros, None, extra={CALL: call})
        return call.captured  # type: ignore[return-value]


def eager_of(cls: type[nn.Module]) -> Callable[..., Any]:
    """The eager attention function beside an attention class, or a subclass of it; BERT's where it is inline."""
    for one in cls.__mro__:
        found = getattr(sys.modules.get(one.__module__), "eager_attention_forward", None)
        if found is not None:
            return found
    return eager_attention_forward


def goes_through_interface(module: nn.Module) -> bool:
    """Whether a module asks `AttentionInterface` for its attention function."""
    forward: Any = inspect.unwrap(own_class(type(module)).forward)
    return "ALL_ATTENTION_FUNCTIONS" in getattr(getattr(forward, "__code__", None), "co_names", ())


def config_of_layers(config: Any) -> Any:
    """A shallow copy of a model's configuration that names `INTERFACE`, for its attention modules alone."""
    own = copy.copy(config)
    own._attn_implementation_internal = INTERFACE
    return own


def parameters_of(cls: type[nn.Module]) -> tuple[str, ...]:
    """Names of what an attention class takes, its input first."""
    return forward_parameters(own_class(cls))
