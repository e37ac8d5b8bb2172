"""Plan of an attention call: the values that layers of one forward pass share, computed by the first of these layers.

Layers with the same scheme, device and cache state share a `CallPlan`. It holds positions, the merged mask, cosines and
sines of every region, the terms of the scheme, and the function that computes attention. A plan lives in the
`ForwardContext` of one forward pass: threads share no plan, and none outlives its forward pass.

Each layer itself evaluates terms that have a gradient, or that read its hidden states, projections, extra key channels
or index. Which terms read these is observed, not declared (`hf_posenc.forward.shared_terms`). Graphs of a compiler or
of `torch.jit.trace` plan every layer anew: a lookup would specialize them to one length.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from hf_posenc.attention.call import RotateAtRead
from hf_posenc.cache.eviction import EVICTS, eviction_state
from hf_posenc.core.context import PositionContext
from hf_posenc.core.tracing import is_traced
from hf_posenc.forward.attention_masks import scores_mask
from hf_posenc.forward.engine_backend import (
    ENGINE_BACKENDS,
    AttentionOutput,
    ComputeCall,
    batched_by_engine,
    check_context_parallel,
    context_parallel_active,
)
from hf_posenc.forward.host_calls import cache_name_error, paged_cache
from hf_posenc.forward.keys_in_reach import mask_in_reach, without_unwritten_keys
from hf_posenc.forward.layer import PatchedLayer
from hf_posenc.forward.placement import scheme_on
from hf_posenc.forward.positions import KEYWORD, ForwardContext, context_of, in_steps_of_one, past_and_keys
from hf_posenc.forward.rotate_decode import NoRotation, keys_at_read
from hf_posenc.forward.rotate_qk import region_rotations, rotate_regions
from hf_posenc.forward.shared_terms import PER_LAYER, ReadsLayer, SchemeTraits, scheme_traits, shared_terms
from hf_posenc.forward.split_terms import SplitTerms
from hf_posenc.forward.text_borders import CU_SEQ_LENS, TEXT_OF_TOKEN, separate_texts
from hf_posenc.forward.validate_inputs import refuse_keyword
from hf_posenc.schemes.base import Scheme

if TYPE_CHECKING:
    from transformers import Cache


Rotate = Callable[[Tensor, Tensor, Tensor], tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]]


@dataclass
class CallPlan:
    """Values that layers of one forward pass share if they have the same scheme, device and cache state.

    Attributes:
        scheme: the scheme, with its parameters on the device of these layers.
        ctx: positions, without the values of one layer.
        mask: attention mask for the keys in reach; None if causality alone (or nothing) hides keys.
        layer_mask: mask argument of the attention modules; kept so that no other mask gets its ``id``.
        backend: name of the attention implementation.
        paged: whether the engine computes the call as a continuous batch.
        traits: properties of the scheme that hold for every forward pass.
        rotate: function that rotates queries, keys and values for every region; None if the rotation has a gradient.
        shared: terms of all layers; None if every layer has its own.
        function: the host's own attention function for the backend, set by the first layer that needs it.
        compute: functions by which the engine computes a call, by shapes, dtypes and dropout.
        stored: number of the only region whose keys are cached; None if all different copies of a key are cached, and
            without a cache.
        at_read: for every region, the rotation of these keys when they are read; empty without ``stored``.
        succeeded: whether a layer was computed, so that no later layer is refused.
    """

    scheme: Scheme
    ctx: PositionContext
    mask: Any
    layer_mask: Any
    backend: str
    paged: bool
    traits: SchemeTraits
    rotate: Rotate | None = None
    shared: SplitTerms | None = None
    function: Callable[..., AttentionOutput] | None = None
    compute: dict[Hashable, ComputeCall] = field(default_factory=dict)
    stored: int | None = None
    at_read: tuple[RotateAtRead | None, ...] = ()
    succeeded: bool = False


class PlanRequest(NamedTuple):
    """Arguments of `plan_of`, the context of the forward pass, and the sizes by `past_and_keys`."""

    layer: PatchedLayer
    query: Tensor
    cache: Cache | None
    mask: Any
    host: dict[str, Any]
    forward: ForwardContext
    sizes: tuple[int | Tensor, int]


def plan_of(layer: PatchedLayer, query: Tensor, cache: Cache | None, mask: Any, host: dict[str, Any]) -> CallPlan:
    """The plan of a layer's call, made by the first layer of a forward pass that needs it.

    Args:
        layer: the attention module.
        query: ``[batch, heads, query, head_dim]``.
        cache: KV cache of self-attention, before it takes the new keys.
        mask: mask that transformers made for the backend.
        host: the call's other keywords; the `ForwardContext` is removed from it.

    Raises:
        HostChanged: the model got a KV cache, but its layers do not pass it on under a known name.
    """
    forward: ForwardContext | None = host.pop(KEYWORD, None)
    if forward is None:
        forward = context_alone(layer, host)
    if cache is None and forward.cached and not layer.training:  # gradient checkpointing removes the cache
        raise cache_name_error(type(layer).__name__)
    scheme, (past, keys) = layer.scheme, past_and_keys(cache, layer.layer_idx, query.shape[2])
    if isinstance(past, Tensor) and past.device.type == "cpu" and not is_traced():
        past = int(past)  # on a GPU this would wait for the device
    by_scheme: dict[Scheme, CallPlan] = {}
    if isinstance(past, int) and not is_traced():
        evicts = cache is not None and EVICTS in cache.__dict__  # then masks depend on the window and chunk of a layer
        eviction = (eviction_state(cache, layer.layer_idx), layer.window, layer.chunk) if evicts else None
        key = (
            query.device, past, keys, cache is None, id(mask), id(layer.config), layer.is_causal,
            torch.is_grad_enabled(), eviction,
        )  # fmt: skip
        by_scheme = forward.plans.setdefault(key, {})
        if scheme in by_scheme:
            return by_scheme[scheme]
    request = PlanRequest(layer, query, cache, mask, host, forward, (past, keys))
    plan = make_plan(request, scheme, next(iter(by_scheme.values()), None))
    if plan.scheme is scheme or not by_scheme:  # a copy for another device belongs to one layer
        by_scheme[plan.scheme] = plan
    return plan


def context_alone(layer: PatchedLayer, host: dict[str, Any]) -> ForwardContext:
    """Context of an attention module that is called on its own, outside a forward pass of its model."""
    for name in ("position_bias", *CU_SEQ_LENS, TEXT_OF_TOKEN):
        if host.get(name) is not None:
            refuse_keyword(name, host[name], layer.scheme)
    ids = host.get("position_ids")
    return ForwardContext(None, ids is None or in_steps_of_one(ids))


def make_plan(request: PlanRequest, scheme: Scheme, template: CallPlan | None = None) -> CallPlan:
    """Make a plan; positions and mask come from ``template`` if there is one for another scheme of the same call."""
    layer, query, cache = request.layer, request.query, request.cache
    causal = layer.is_causal
    traits = scheme.memoized(("traits", causal), partial(scheme_traits, scheme, causal))
    if traits.learned:
        scheme = scheme_on(scheme, query.device)
    if template is not None and paged_cache(request.host) is None:
        plan = CallPlan(scheme, template.ctx, template.mask, request.mask, template.backend, False, traits)
    else:
        plan = plan_with_positions(request, scheme, traits)
    if cache is not None and traits.caches_one_key:
        plan.stored, plan.at_read = keys_at_read(scheme, plan.ctx)
    if not plan.paged and not is_traced():
        evaluate_shared(plan, with_others=not traits.learned or layer._modules.get("posenc") is None)
    return plan


def plan_with_positions(request: PlanRequest, scheme: Scheme, traits: SchemeTraits) -> CallPlan:
    """A plan with the positions and the mask of a call, before the scheme is evaluated."""
    layer, query, cache, mask, host, forward, sizes = request
    causal, backend = layer.is_causal, layer.backend
    ctx = context_of(query, cache, layer.layer_idx, host.get("position_ids"), forward, causal=causal, sizes=sizes)
    if paged_cache(host) is not None and batched_by_engine(scheme, ctx):
        return CallPlan(scheme, ctx, mask, mask, backend, True, traits)
    in_reach, ctx = mask_in_reach(mask, ctx, cache, layer, forward)
    if forward.texts is not None:
        in_reach = separate_texts(in_reach, forward.texts, ctx, backend, host, query.shape[0])
    if in_reach is not mask and isinstance(in_reach, Tensor):
        in_reach = scores_mask(in_reach, query.dtype, backend)
    past, keys = sizes
    if isinstance(past, int) and keys > past + query.shape[2] and backend in ENGINE_BACKENDS and not is_traced():
        in_reach, ctx = without_unwritten_keys(in_reach, ctx, past + query.shape[2])
    return CallPlan(scheme, ctx, in_reach, mask, backend, False, traits)


def evaluate_shared(plan: CallPlan, *, with_others: bool) -> None:
    """Set the rotation and the terms of a plan, if they read no values of one layer and have no gradient.

    ``with_others`` is false if only one layer uses the plan. Then it gets only terms that hold for every forward pass:
    the layer evaluates other terms itself.
    """
    scheme, traits = plan.scheme, plan.traits
    if traits.learned and (torch.is_grad_enabled() or scheme.training):
        return
    try:
        plan.rotate = shared_rotation(plan)
        if traits.terms is not None:
            plan.shared = traits.terms
        elif with_others and not traits.extra_channels:
            plan.shared = shared_terms(scheme, without_layer_values(plan.ctx))
    except ReadsLayer:
        return
    if plan.shared is not None:
        plan.succeeded = plan.shared.scales_only  # the host's own attention function refuses no call
        if context_parallel_active():
            check_context_parallel(scheme, plan.shared.terms, plan.mask)


def shared_rotation(plan: CallPlan) -> Rotate | None:
    """Function by which all layers rotate queries, keys and values; None if the rotation has a gradient."""
    rotation, ctx = plan.traits.rotation, plan.ctx
    if isinstance(rotation, NoRotation):
        return rotation
    # With one copy per key, a decode rotation rotates the keys of one region, which suffices for a cache alone.
    suffices = plan.stored is not None or not plan.traits.caches_one_key
    one_token = ctx.coordinates is None and ctx.query_positions.shape[1] == 1
    if rotation is not None and suffices and one_token and ctx.first is not None:
        return rotation.at(ctx.first, ctx.device)
    regions = region_rotations(plan.scheme, without_layer_values(ctx), stored=plan.stored)
    if any(region.rotation is not None and region.rotation.learned for region in regions):
        return None
    return partial(rotate_regions, regions)


def without_layer_values(ctx: PositionContext) -> PositionContext:
    """Positions of a call, with `PER_LAYER` in place of the values of one layer."""
    return replace(
        ctx, hidden=PER_LAYER, extra_key_channels=PER_LAYER, projections=PER_LAYER, layer=PER_LAYER, kept=PER_LAYER
    )
