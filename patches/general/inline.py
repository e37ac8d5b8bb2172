"""Attention of classes that compute it inline: their own forward runs, and its scores are left to the scheme.

See `hf_posenc.patches.general.pending_scores` for how. Such a forward takes neither positions nor a `ForwardContext`,
which are looked up (`hf_posenc.forward.current_forward`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from hf_posenc.cache.provenance import self_attention_cache
from hf_posenc.errors import InvalidInput
from hf_posenc.forward.positions import KEYWORD, ForwardContext
from hf_posenc.patches.general.attention import (
    CALL,
    OBSERVED,
    InterceptedAttention,
    LayerCall,
    Untouched,
    attend_as_patched,
    goes_through_interface,
    parameters_of,
)
from hf_posenc.patches.general.classes import own_class
from hf_posenc.patches.general.interception import Attend, Interception
from hf_posenc.patches.general.pending_scores import refused
from hf_posenc.patches.shared.lookup_attention import LookupAttention, PlacedAttention, of_pairs

ATTEND = "posenc_attend"  # of a module of the class `Inline` makes: the function that computes its attention
SOFTMAX, PRODUCTS = "softmax", ("matmul", "bmm")


def computes_inline(module: nn.Module) -> bool:
    """Whether the methods of a module take a softmax and products of matrices, as inline attention does."""
    names = set() if isinstance(module, PreTrainedModel) else _names_in(own_class(type(module)))
    return SOFTMAX in names and any(name.startswith(PRODUCTS) for name in names)


def _names_in(cls: type[nn.Module]) -> set[str]:
    """Names that the methods of a class use, those of its bases included."""
    methods = [method for one in cls.__mro__ if one not in nn.Module.__mro__ for method in vars(one).values()]
    codes = (getattr(inspect.unwrap(method), "__code__", None) for method in methods if callable(method))
    return {name for code in codes if code is not None for name in code.co_names}


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """Modules whose attention can be intercepted: those that ask `AttentionInterface`, or else compute it inline."""
    modules = list(model.modules())
    return [one for one in modules if goes_through_interface(one)] or [one for one in modules if computes_inline(one)]


class Placeholder(Untouched):
    """A KV cache as inline attention sees it: hands back as many keys as there are, all of them zero, in no memory."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache)
        self.new: tuple[Tensor, Tensor] | None = None
        self.layer = self.count = 0

    def update(self, keys: Tensor, values: Tensor, layer: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Keep the new keys and values for the attention function."""
        self.new, self.layer = (keys, values), layer
        self.count, _ = self.cache.get_mask_sizes(keys.shape[2], layer)
        return tuple(x.new_zeros(()).expand(*x.shape[:2], self.count, x.shape[3]) for x in (keys, values))  # type: ignore[return-value]


@torch.compiler.disable  # a compiler cannot follow pending scores: its graph ends here
def run_inline(
    module: nn.Module, forward: Callable[..., Any], call: dict[str, Any], attend: Attend, *, must_attend: bool = False
) -> Any:
    """What a module's own forward returns if its attention is computed by a function.

    Args:
        module: whose class computes attention inline.
        forward: its own.
        call: all arguments, by name.
        attend: takes what transformers' attention functions take, and the `Placeholder` of the call's KV cache or None.
        must_attend: whether it has to be called.
    """
    names, name = parameters_of(type(module)), own_class(type(module)).__name__
    caches = {name: Placeholder(self_attention_cache(x)) for name, x in call.items() if isinstance(x, Cache)}
    cache = next(iter(caches.values()), None)

    def attend_to_all(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **rest: Any) -> Any:
        tokens, held = query.shape[2], None if cache is None else cache.new
        if cache is not None and held is not None:
            tokens = cache.count
        refuse_other_keys(name, key.shape[2], tokens)
        if held is not None:
            key, value = held
        return attend(query, key, value, mask, cache=cache, **rest)

    own = {name: value for name, value in call.items() if name != "position_ids" or name in names}
    with Interception(attend_to_all, call[names[0]], name) as interception:
        output = forward(**{**own, **caches})
    if must_attend and interception.mixed is None:
        raise refused(name, "does not multiply queries of all tokens by their keys in this call")
    return interception.completed(output)


def refuse_other_keys(name: str, keys: int, tokens: int) -> None:
    """Refuse keys that belong to no token, such as the prompts of MVP: they have no position."""
    if keys != tokens:
        raise refused(name, f"attends to {keys} keys, where {tokens} tokens are visible")


class Inline(nn.Module):
    """Mixin of a class that computes attention inline: the function under `ATTEND` computes it."""

    prefix = "Inline"
    own: bool = False  # whether the class computes it itself after all

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward; see `run_inline`."""
        if self.own:
            return super().forward(*args, **kwargs)
        call = dict(zip(parameters_of(type(self)), args, strict=False)) | kwargs
        return run_inline(self, super().forward, call, partial(self.__dict__[ATTEND], self))


class InterceptedInlineAttention(LookupAttention, InterceptedAttention):
    """Mixin of a class that computes attention inline: `attend_as_patched` computes it."""

    config = PlacedAttention.config

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward, and a KV cache and scores that it leaves to the scheme."""
        names = parameters_of(type(self))
        call = dict(zip(names, args, strict=False)) | kwargs
        layer: LayerCall | None = call.pop(CALL, None)
        if layer is None:
            found = self.looked_up(call)
            hidden = self._tokens_first(call[names[0]])
            layer = LayerCall(hidden, None, found.get(KEYWORD), found["position_ids"])
        own, attend = super(InterceptedAttention, self).forward, partial(self._attend, layer, layer.forward)
        return run_inline(self, own, call, attend, must_attend=True)

    def _attend(
        self,
        layer: LayerCall,
        forward: ForwardContext | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        cache: Placeholder | None,
        **rest: Any,
    ) -> Any:
        if cache is not None and self.is_causal:
            layer.cache = cache.cache
        elif cache is not None and cache.cache.get_seq_length() > 0:
            raise InvalidInput(
                "The KV cache of an encoder holds tokens already, which the model would take for earlier tokens than "
                "those of this call. Pass no cache."
            )
        if forward is not None:
            if forward.positions is not None and forward.positions.shape[-1] != query.shape[2]:
                raise InvalidInput(
                    f"{own_class(type(self)).__name__} attends to {query.shape[2]} vectors, and its model was given "
                    f"{forward.positions.shape[-1]} tokens. Leave out the other inputs: they have no positions."
                )
            mask = of_pairs(mask, query.shape[2], forward)
        weights = forward is not None and forward.weights
        return attend_as_patched(self, query, key, value, mask, **{CALL: layer, "output_attentions": weights, **rest})

    def _tokens_first(self, hidden: Tensor) -> Tensor:
        return hidden.transpose(1, 2) if self.__dict__[OBSERVED].channels_first else hidden
