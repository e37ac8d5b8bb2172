"""Patched attention for classes that compute attention inline, without `AttentionInterface`.

The model's own forward runs, and an `Interception` replaces its scores (`hf_posenc.patches.general.pending_scores`).
Such a forward takes neither positions nor a `ForwardContext`, so `hf_posenc.forward.current_forward` looks them up.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import Cache, PreTrainedModel

from hf_posenc.cache.provenance import self_attention_cache
from hf_posenc.errors import InvalidInput
from hf_posenc.forward.positions import KEYWORD
from hf_posenc.patches.general.attention import (
    CALL,
    OBSERVED,
    CacheProxy,
    InterceptedAttention,
    LayerCall,
    attend_as_patched,
    goes_through_interface,
    parameters_of,
)
from hf_posenc.patches.general.classes import own_class
from hf_posenc.patches.general.pending_scores import PendingScores, function_name, refused
from hf_posenc.patches.shared.lookup_attention import LookupAttention, PlacedAttention, mask_per_query

SOFTMAX = "softmax"
PRODUCTS = ("matmul", "bmm")
Attend = Callable[..., tuple[Tensor, Tensor | None]]
"""Takes queries, keys, values, a mask, and keywords ``scaling`` and ``dropout``, as transformers' functions do."""


def computes_inline(module: nn.Module) -> bool:
    """Whether the methods of a module call a softmax and matrix products, as inline attention does."""
    if isinstance(module, PreTrainedModel):
        return False
    own = [base for base in own_class(type(module)).__mro__ if base not in nn.Module.__mro__]
    methods = [method for base in own for method in vars(base).values() if callable(method)]
    codes = (getattr(inspect.unwrap(method), "__code__", None) for method in methods)
    names = {name for code in codes if code is not None for name in code.co_names}
    return SOFTMAX in names and any(name.startswith(PRODUCTS) for name in names)


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """Modules whose attention can be intercepted: users of `AttentionInterface`, or else inline attention."""
    modules = list(model.modules())
    return [m for m in modules if goes_through_interface(m)] or [m for m in modules if computes_inline(m)]


class Placeholder(CacheProxy):
    """KV cache that inline attention updates: records the new keys, and returns zeros for all keys, without memory."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache)
        self.new: tuple[Tensor, Tensor] | None = None
        self.layer = self.count = 0

    def update(self, keys: Tensor, values: Tensor, layer: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Record the new keys and values; return expanded zeros for all keys and values in reach."""
        self.new, self.layer = (keys, values), layer
        self.count, _ = self.cache.get_mask_sizes(keys.shape[2], layer)
        return tuple(x.new_zeros(()).expand(*x.shape[:2], self.count, x.shape[3]) for x in (keys, values))  # type: ignore[return-value]


class Interception(TorchFunctionMode):
    """Mode in which the first product of queries and keys returns `PendingScores` instead of scores.

    Args:
        attend: called once, with ``[batch, heads, token, head_dim]`` and a mask that broadcasts to the scores or None.
        hidden: input of the forward, ``[batch, token, width]`` or ``[batch, width, token]``.
        name: name of the attention class, for error messages.
    """

    def __init__(self, attend: Attend, hidden: Tensor, name: str) -> None:
        super().__init__()
        self.attend, self.shape, self.name = attend, hidden.shape, name
        self.started = False
        self.mixed: Tensor | None = None
        self.weights: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return pending scores for the product of queries and keys; run every other function."""
        if not self.started and function_name(func) in PRODUCTS and not kwargs and self._are_query_and_key(*args):
            self.started = True
            query, key = args[0], args[1].transpose(-1, -2)
            shape = torch.Size((*query.shape[:-1], key.shape[-2]))
            return PendingScores(self.name, self.times_values, query, key, shape)
        return func(*args, **(kwargs or {}))

    def _are_query_and_key(self, query: Any, key: Any) -> bool:
        """Whether two factors can be the queries of all tokens and the transposed keys, at least as many."""
        rows = self.shape[0]  # by `shape`: `len` would fix the number of rows of a traced graph
        if not all(isinstance(x, Tensor) and x.ndim >= 3 and x.shape[0] % rows == 0 for x in (query, key)):
            return False
        has_tokens = query.shape[-2] in self.shape[1:] and key.shape[-1] >= query.shape[-2]
        return has_tokens and query.shape[0] == key.shape[0]

    def times_values(self, scores: PendingScores, values: Tensor) -> Tensor:
        """Output of the attention function for the recorded scores, in the shape of their product with ``values``."""
        if not scores.normalised or self.mixed is not None:
            raise refused(self.name, "multiplies something else by its attention scores")
        query, key, heads_in_batch = scores.query, scores.key, values.ndim == 3
        query, key, values = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, values))  # for kernels
        if heads_in_batch:
            query, key, values = (x.unflatten(0, (self.shape[0], -1)) for x in (query, key, values))
        mixed, self.weights = self.attend(
            query, key, values, scores.mask(), scaling=scores.factor, dropout=scores.dropout
        )
        self.mixed = mixed.transpose(1, 2)
        return self.mixed.flatten(0, 1) if heads_in_batch else self.mixed

    def with_weights(self, output: Any) -> Any:
        """The output of a forward, with the attention weights (or None) instead of pending scores."""
        if isinstance(output, PendingScores):
            if not output.normalised:
                raise refused(self.name, "returns its attention scores themselves")
            return self.weights
        if isinstance(output, dict):
            return {name: self.with_weights(value) for name, value in output.items()}
        if isinstance(output, (tuple, list)):
            return type(output)(self.with_weights(value) for value in output)
        return output


@torch.compiler.disable  # a compiler cannot follow pending scores: its graph ends here
def run_inline(
    module: nn.Module, forward: Callable[..., Any], call: dict[str, Any], attend: Attend, *, must_attend: bool = False
) -> Any:
    """Run a module's own forward, with its attention computed by ``attend``.

    Args:
        module: module that computes attention inline.
        forward: the module's own forward.
        call: all arguments, by name.
        attend: takes the arguments of transformers' attention functions, and as ``cache`` a `Placeholder` or None.
        must_attend: whether to raise if the forward never multiplies queries by keys.
    """
    parameters, class_name = parameters_of(type(module)), own_class(type(module)).__name__
    caches = {name: Placeholder(self_attention_cache(x)) for name, x in call.items() if isinstance(x, Cache)}
    cache = next(iter(caches.values()), None)

    def attend_to_new_keys(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **keywords: Any) -> Any:
        tokens = query.shape[2] if cache is None or cache.new is None else cache.count
        if key.shape[2] != tokens:  # keys without a token, such as the prompts of MVP, have no position
            raise refused(class_name, f"attends to {key.shape[2]} keys, where {tokens} tokens are visible")
        if cache is not None and cache.new is not None:
            key, value = cache.new
        return attend(query, key, value, mask, cache=cache, **keywords)

    own_arguments = {name: value for name, value in call.items() if name != "position_ids" or name in parameters}
    with Interception(attend_to_new_keys, call[parameters[0]], class_name) as interception:
        output = forward(**{**own_arguments, **caches})
    if must_attend and interception.mixed is None:
        raise refused(class_name, "does not multiply queries of all tokens by their keys in this call")
    return interception.with_weights(output)


class InterceptedInlineAttention(LookupAttention, InterceptedAttention):
    """Mixin for inline attention in a patched model: `attend_as_patched` computes the attention."""

    config = PlacedAttention.config
    compiles_whole = False  # see `run_inline`

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward, in which the scheme computes the scores and updates the KV cache."""
        parameters = parameters_of(type(self))
        call = dict(zip(parameters, args, strict=False)) | kwargs
        layer_call: LayerCall | None = call.pop(CALL, None)
        if layer_call is None:
            context = self.looked_up(call)
            hidden, channels_first = call[parameters[0]], self.__dict__[OBSERVED].channels_first
            hidden = hidden.transpose(1, 2) if channels_first else hidden
            layer_call = LayerCall(hidden, None, context.get(KEYWORD), context["position_ids"])
        host_forward = super(InterceptedAttention, self).forward
        return run_inline(self, host_forward, call, partial(self._attend, layer_call), must_attend=True)

    def _attend(
        self,
        layer_call: LayerCall,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        cache: Placeholder | None,
        **keywords: Any,
    ) -> Any:
        forward = layer_call.forward
        if cache is not None and self.is_causal:
            layer_call.cache = cache.cache
        elif cache is not None and cache.cache.get_seq_length() > 0:
            raise InvalidInput(
                "The KV cache of this encoder already holds tokens, which the model would read as earlier tokens of "
                "the text. Pass no cache."
            )
        if forward is not None:
            if forward.positions is not None and forward.positions.shape[-1] != query.shape[2]:
                raise InvalidInput(
                    f"{own_class(type(self)).__name__} attends to {query.shape[2]} vectors, and its model was given "
                    f"{forward.positions.shape[-1]} tokens. Leave out the other inputs: they have no positions."
                )
            mask = mask_per_query(mask, query.shape[2], forward)
        keywords = {CALL: layer_call, "output_attentions": forward is not None and forward.weights, **keywords}
        return attend_as_patched(self, query, key, value, mask, **keywords)
