"""Plan of an attention call: what all layers of one forward pass share, worked out by the first of them.

Positions, the merged mask, cosines and sines of every region, the terms of the scheme and the way attention is computed
are the same in every layer with the same scheme, device and cache state. A `CallPlan` holds them; it lives in the
`ForwardContext` of one forward pass and goes with it, so that threads share none and nothing is kept in memory.

What belongs to one layer is evaluated in that layer: terms that read its hidden states, projections, extra key channels
or index, and whatever has a gradient. Whether terms do is observed, not declared (`PerLayer`). Graphs of a compiler or
of `torch.jit.trace` plan every layer anew: a dictionary lookup would tie them to one length. The plan, and how it is
observed what may be shared, are one idea of more than 200 lines.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import Bias, KeyBias, Terms, ToeplitzBias
from hf_posenc.core.tracing import is_traced
from hf_posenc.patches.cache import paged
from hf_posenc.patches.cache.eviction import eviction_state, has_gaps, mask_is_shorter, mask_of_gaps, mask_of_held
from hf_posenc.patches.cache.key_positions import reads_keys
from hf_posenc.patches.context_parallel import context_parallel_active, refuse_context_parallel
from hf_posenc.patches.engine_backend import AttentionOutput, ComputeCall
from hf_posenc.patches.placement import holder, scheme_on
from hf_posenc.patches.positions import (
    KEYWORD,
    ForwardContext,
    context_of,
    in_steps_of_one,
    is_causal_only,
    past_and_keys,
)
from hf_posenc.patches.rotate_qk import RegionRotation, key_copies, query_factor, region_rotations
from hf_posenc.schemes.base import Scheme, implements

if TYPE_CHECKING:
    from transformers.cache_utils import Cache


class PlannedLayer(Protocol):
    """What of a patched attention module a plan reads."""

    layer_idx: int | None
    is_causal: bool
    config: Any

    @property
    def backend(self) -> str:
        """Name of the attention implementation in use."""

    @property
    def scheme(self) -> Scheme:
        """The layer's own scheme, or the one its model shares."""


@dataclass
class SharedTerms:
    """Terms that are the same in all layers of a plan.

    Attributes:
        terms: without the factors of whole queries.
        query_factor: those, ``[batch or 1, heads or 1, query, 1]``; None for none.
        key_copies: number of the key copy that each region reads.
        plain: whether the host's own attention function can carry the terms.
        compute: by everything else that decides the route (shapes, dtypes, dropout), how a call is computed.
    """

    terms: Terms
    query_factor: Tensor | None
    key_copies: tuple[int, ...]
    plain: bool
    compute: dict[Hashable, ComputeCall] = field(default_factory=dict)

    @classmethod
    def of(cls, terms: Terms) -> SharedTerms:
        """Terms as a scheme made them."""
        factor, terms = query_factor(terms)
        return cls(terms, factor, key_copies(terms.regions), terms.plain)


@dataclass
class CallPlan:
    """What the layers of one forward pass share that have the same scheme, device and cache state.

    Attributes:
        scheme: with its parameters on the device of these layers.
        ctx: positions, without what belongs to one layer.
        mask: the attention mask, as the keys in reach need it; None where causality (or nothing) is all there is.
        given_mask: as the attention modules are called with it; kept so that no other mask can have its identity.
        backend: name of the attention implementation.
        function: the host's own attention function for it, once a layer has asked for it.
        paged: whether the call is one of continuous batching that the engine computes.
        prepares: whether the scheme changes queries and keys before they are rotated.
        extra_channels: whether the scheme caches extra channels with every key.
        rotations: of every region; None where they have a gradient or belong to one layer.
        shared: terms of all layers; None where every layer has its own.
    """

    scheme: Scheme
    ctx: PositionContext
    mask: Any
    given_mask: Any
    backend: str
    paged: bool
    prepares: bool
    extra_channels: bool
    rotations: tuple[RegionRotation, ...] | None = None
    shared: SharedTerms | None = None
    function: Callable[..., AttentionOutput] | None = None


def plan_of(layer: PlannedLayer, query: Tensor, cache: Cache | None, mask: Any, host: dict[str, Any]) -> CallPlan:
    """The plan of a layer's call: made by the first layer of a forward pass that needs it, then looked up.

    Args:
        layer: the attention module.
        query: ``[batch, heads, query, head_dim]``.
        cache: of self-attention, before it takes the new keys.
        mask: as transformers made it for the backend in use.
        host: the call's other keywords; the `ForwardContext` is taken out of it.
    """
    forward: ForwardContext | None = host.pop(KEYWORD, None)
    if forward is None:  # the attention module is called on its own
        ids = host.get("position_ids")
        return make_plan(layer, query, cache, mask, host, ForwardContext(None, ids is None or in_steps_of_one(ids)))
    past, keys = past_and_keys(cache, layer.layer_idx, query.shape[2])
    if isinstance(past, Tensor) or is_traced():
        return make_plan(layer, query, cache, mask, host, forward)
    key = (
        *(layer.scheme, query.device, past, keys, cache is None, eviction_state(cache, layer.layer_idx)),
        *(id(mask), id(layer.config), layer.is_causal, torch.is_grad_enabled()),
    )
    plan = forward.plans.get(key)
    if plan is None:
        plan = make_plan(layer, query, cache, mask, host, forward)
        if plan.scheme is layer.scheme:  # a copy on another device goes with the layer that needed it
            forward.plans[key] = plan
    return plan


def make_plan(
    layer: PlannedLayer,
    query: Tensor,
    cache: Cache | None,
    mask: Any,
    host: dict[str, Any],
    forward: ForwardContext,
) -> CallPlan:
    """Work out a plan; the arguments are those of `plan_of`."""
    scheme, index = scheme_on(layer.scheme, query.device), layer.layer_idx
    backend = layer.backend
    ctx = context_of(query, cache, index, host.get("position_ids"), forward, causal=layer.is_causal)
    given, length = mask, query.shape[2]
    if backend == "sdpa" and is_causal_only(mask, cache, index, forward):
        mask = None
    if mask is None and ctx.causal and 1 < length < ctx.key_positions.shape[1]:
        # Prefill of an empty static cache: transformers passes no mask, and nothing is written behind the queries.
        ctx = replace(ctx, key_positions=ctx.key_positions[:, :length])
    by_engine = paged.takes(scheme, ctx, host)
    if not by_engine:
        if forward.own_mask:
            mask = mask_of_held(mask, cache, index, length)
        elif has_gaps(cache, index) or mask_is_shorter(mask, ctx):
            mask = mask_of_gaps(ctx, backend)
    plan = CallPlan(
        scheme, ctx, mask, given, backend,
        paged=by_engine,
        prepares=implements(scheme, "prepare"),
        extra_channels=implements(scheme, "extra_key_channels"),
    )  # fmt: skip
    if not by_engine and not is_traced():
        share(plan)
    return plan


def share(plan: CallPlan) -> None:
    """Evaluate the scheme for all layers at once, as far as it reads nothing of one layer and has no gradient."""
    scheme = plan.scheme
    ctx = replace(plan.ctx, hidden=PER_LAYER, extra_key_channels=PER_LAYER, projections=PER_LAYER, layer=PER_LAYER)
    trained = (torch.is_grad_enabled() or scheme.training) and holder(scheme) is not None
    try:
        if not trained:
            rotations = region_rotations(scheme, ctx)
            if all(region.rotation is None or not region.rotation.learned for region in rotations):
                plan.rotations = rotations
        if not trained and not plan.extra_channels:
            plan.shared = shared_terms(scheme, ctx)
    except ReadsLayer:
        return
    if plan.shared is not None:
        check_context_parallel(scheme, plan.shared.terms, plan.mask)


def shared_terms(scheme: Scheme, ctx: PositionContext) -> SharedTerms | None:
    """Terms of all layers; None where every layer has its own. Kept with a scheme whose terms know no position."""
    if not scheme.keep("reads positions", lambda: reads_positions(scheme)):
        return scheme.keep("its terms", lambda: SharedTerms.of(scheme.terms(ctx)))
    terms = scheme.terms(ctx)
    return SharedTerms.of(terms) if terms_are_shared(terms) else None


def reads_positions(scheme: Scheme) -> bool:
    """Whether a scheme's terms may differ from call to call: by positions, or by what it has learned."""
    others = implements(scheme, "query_scale") or implements(scheme, "terms")
    return others or reads_keys(scheme) or holder(scheme) is not None


def terms_are_shared(terms: Terms) -> bool:
    """Whether terms evaluated once hold for other layers: nothing in them is computed later, from one layer's tensors.

    A closure may have kept what it was made from; a method of the scheme has not.
    """
    return len(terms.values) == 0 and all(_is_shared(bias) for bias in terms.bias)


def _is_shared(bias: Bias) -> bool:
    if isinstance(bias, ToeplitzBias):
        return isinstance(bias.of_distance, MethodType)
    return isinstance(bias, KeyBias)


def check_context_parallel(scheme: Scheme, terms: Terms, mask: Any) -> None:
    """Refuse terms that need whole texts where a process holds parts of them.

    Raises:
        BackendCannotCarry: context parallelism is active, and the terms need more than a token's own position.
    """
    if context_parallel_active() and (scheme.needs_whole_text or not terms.plain or mask is not None):
        refuse_context_parallel(scheme)


class ReadsLayer(Exception):
    """Terms were evaluated for all layers, and read what belongs to one."""


class PerLayer:
    """Stands for a value that every layer has its own of, and raises `ReadsLayer` when it is used."""

    def _raise(self, *args: Any, **kwargs: Any) -> Any:
        raise ReadsLayer

    __getattr__ = __getitem__ = __iter__ = __len__ = __contains__ = __bool__ = __call__ = _raise
    __int__ = __float__ = __index__ = __hash__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _raise  # type: ignore[assignment]
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _raise
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _raise
    __neg__ = __abs__ = __invert__ = __and__ = __rand__ = __or__ = __ror__ = _raise

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise ReadsLayer


PER_LAYER: Any = PerLayer()
