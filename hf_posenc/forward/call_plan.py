"""Plan of an attention call: what all layers of one forward pass share, worked out by the first of them.

Positions, the merged mask, cosines and sines of every region, the terms of the scheme and the way attention is computed
are the same in every layer with the same scheme, device and cache state. A `CallPlan` holds them; it lives in the
`ForwardContext` of one forward pass and goes with it, so that threads share none and nothing is kept in memory.

What belongs to one layer is evaluated in that layer: terms that read its hidden states, projections, extra key channels
or index, and whatever has a gradient. Whether terms do is observed, not declared (`hf_posenc.forward.shared_terms`).
Graphs of a compiler or of `torch.jit.trace` plan every layer anew: a lookup would tie them to one length.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

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
from hf_posenc.forward.host_calls import cache_lost, paged_cache
from hf_posenc.forward.keys_in_reach import mask_in_reach, written_alone
from hf_posenc.forward.layer import PatchedLayer
from hf_posenc.forward.placement import scheme_on
from hf_posenc.forward.positions import (
    KEYWORD,
    ForwardContext,
    context_of,
    in_steps_of_one,
    past_and_keys,
)
from hf_posenc.forward.rotate_decode import KeysAtRead, NoRotation, keys_at_read
from hf_posenc.forward.rotate_qk import region_rotations, rotate_regions
from hf_posenc.forward.shared_terms import PER_LAYER, FixedPart, ReadsLayer, SharedTerms, fixed_part, shared_terms
from hf_posenc.forward.text_borders import separated
from hf_posenc.forward.validate_inputs import refuse_keyword
from hf_posenc.schemes.base import Scheme

if TYPE_CHECKING:
    from transformers import Cache


Rotate = Callable[[Tensor, Tensor, Tensor], tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]]


@dataclass
class CallPlan:
    """What the layers of one forward pass share that have the same scheme, device and cache state.

    Attributes:
        scheme: with its parameters on the device of these layers.
        ctx: positions, without what belongs to one layer.
        mask: the attention mask, as the keys in reach need it; None where causality (or nothing) is all there is.
        given_mask: as the attention modules are called with it; kept so that no other mask can have its identity.
        backend: name of the attention implementation.
        paged: whether the call is one of continuous batching that the engine computes.
        fixed: what the scheme has for every forward pass.
        rotate: queries, keys and values to those of every region; None where the rotation has a gradient.
        shared: terms of all layers; None where every layer has its own.
        function: the host's own attention function for the backend, once a layer has asked for it.
        compute: by everything else that decides the route (shapes, dtypes, dropout), how the engine computes a call.
        at_read: how keys are read of a cache that holds one copy of each; None where it has what regions read, or where
            nothing is cached.
        succeeded: whether a layer was computed, so that nothing refuses the others.
    """

    scheme: Scheme
    ctx: PositionContext
    mask: Any
    given_mask: Any
    backend: str
    paged: bool
    fixed: FixedPart
    rotate: Rotate | None = None
    shared: SharedTerms | None = None
    function: Callable[..., AttentionOutput] | None = None
    compute: dict[Hashable, ComputeCall] = field(default_factory=dict)
    at_read: KeysAtRead | None = None
    succeeded: bool = False

    @property
    def stored(self) -> int | None:
        """Number of the one region whose keys are cached; None for a copy for each that differs."""
        return None if self.at_read is None else self.at_read.stored


class Asked(NamedTuple):
    """What a layer asks a plan for: the arguments of `plan_of`, and ``sizes``, its `past_and_keys` where known."""

    layer: PatchedLayer
    query: Tensor
    cache: Cache | None
    mask: Any
    host: dict[str, Any]
    forward: ForwardContext
    sizes: tuple[int | Tensor, int] | None = None


def plan_of(layer: PatchedLayer, query: Tensor, cache: Cache | None, mask: Any, host: dict[str, Any]) -> CallPlan:
    """The plan of a layer's call: made by the first layer of a forward pass that needs it, then looked up.

    Args:
        layer: the attention module.
        query: ``[batch, heads, query, head_dim]``.
        cache: of self-attention, before it takes the new keys.
        mask: as transformers made it for the backend in use.
        host: the call's other keywords; the `ForwardContext` is taken out of it.

    Raises:
        HostChanged: the model was called with a KV cache, and its layers do not hand it on under a known name.
    """
    forward: ForwardContext | None = host.pop(KEYWORD, None)
    if forward is None:  # the attention module is called on its own
        for name in ("position_bias", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"):
            if host.get(name) is not None:
                refuse_keyword(name, host[name], layer.scheme)
        ids = host.get("position_ids")
        forward = ForwardContext(None, ids is None or in_steps_of_one(ids))
        return make_plan(Asked(layer, query, cache, mask, host, forward), layer.scheme)
    if cache is None and forward.cached and not layer.training:  # gradient checkpointing takes it away
        raise cache_lost(type(layer).__name__)
    scheme, (past, keys) = layer.scheme, past_and_keys(cache, layer.layer_idx, query.shape[2])
    if isinstance(past, Tensor) and past.device.type == "cpu" and not is_traced():
        past = int(past)  # which a GPU would be waited for
    if isinstance(past, Tensor) or is_traced():
        return make_plan(Asked(layer, query, cache, mask, host, forward, (past, keys)), scheme)
    evicts = cache is not None and EVICTS in cache.__dict__  # then masks are made here, by what a layer sees
    key = (
        *(query.device, past, keys, cache is None, id(mask), id(layer.config), layer.is_causal),
        torch.is_grad_enabled(),
        (eviction_state(cache, layer.layer_idx), layer.window, layer.chunk) if evicts else None,
    )
    plan = forward.plans.get((scheme, key))
    if plan is None:
        asked = Asked(layer, query, cache, mask, host, forward, (past, keys))
        plan = make_plan(asked, scheme, forward.plans.get(key))
        forward.plans[key] = plan
        if plan.scheme is scheme:  # a copy on another device goes with the layer that needed it
            forward.plans[scheme, key] = plan
    return plan


def make_plan(asked: Asked, scheme: Scheme, like: CallPlan | None = None) -> CallPlan:
    """Work out a plan for a scheme, maybe ``like`` one for another scheme with everything else the same."""
    layer, query, cache = asked.layer, asked.query, asked.cache
    causal = layer.is_causal
    fixed = scheme.keep(("fixed", causal), partial(fixed_part, scheme, causal))
    if fixed.learned:
        scheme = scheme_on(scheme, query.device)
    if like is not None and paged_cache(asked.host) is None:
        plan = CallPlan(scheme, like.ctx, like.mask, asked.mask, like.backend, False, fixed)
    else:
        plan = placed(asked, scheme, fixed)
    if cache is not None and fixed.one_key:
        plan.at_read = keys_at_read(scheme, plan.ctx)
    if not plan.paged and not is_traced():
        share(plan, with_others=not fixed.learned or layer._modules.get("posenc") is None)
    return plan


def placed(asked: Asked, scheme: Scheme, fixed: FixedPart) -> CallPlan:
    """A plan with the positions and the mask of a call, and nothing yet that the scheme makes of them."""
    layer, query, cache, mask, host, forward, sizes = asked
    causal, backend = layer.is_causal, layer.backend
    ctx = context_of(query, cache, layer.layer_idx, host.get("position_ids"), forward, causal=causal, sizes=sizes)
    if paged_cache(host) is not None and batched_by_engine(scheme, ctx):
        return CallPlan(scheme, ctx, mask, mask, backend, True, fixed)
    in_reach, ctx = mask_in_reach(mask, ctx, cache, layer, forward, backend)
    if forward.texts is not None:
        in_reach = separated(in_reach, forward.texts, ctx, backend, host, query.shape[0])
    if in_reach is not mask and isinstance(in_reach, Tensor):
        in_reach = scores_mask(in_reach, query.dtype, backend)
    past, keys = sizes or (0, 0)
    if isinstance(past, int) and keys > past + query.shape[2] and backend in ENGINE_BACKENDS and not is_traced():
        in_reach, ctx = written_alone(in_reach, ctx, past + query.shape[2])
    return CallPlan(scheme, ctx, in_reach, mask, backend, False, fixed)


def share(plan: CallPlan, *, with_others: bool) -> None:
    """Evaluate the scheme for all layers at once, as far as it reads nothing of one layer and has no gradient.

    Without other layers only what it has for every forward pass: the layer evaluates the rest itself.
    """
    scheme, fixed = plan.scheme, plan.fixed
    if fixed.learned and (torch.is_grad_enabled() or scheme.training):
        return
    try:
        plan.rotate = rotation_of_layers(plan)
        if fixed.terms is not None:
            plan.shared = fixed.terms
        elif with_others and not fixed.extra_channels:
            plan.shared = shared_terms(scheme, of_any_layer(plan.ctx))
    except ReadsLayer:
        return
    plan.succeeded = plan.shared is not None and plan.shared.plain  # the host refuses nothing
    if plan.shared is not None and context_parallel_active():
        check_context_parallel(scheme, plan.shared.terms, plan.mask)


def rotation_of_layers(plan: CallPlan) -> Rotate | None:
    """How all layers rotate their queries and keys; None where the rotation has a gradient."""
    known, ctx = plan.fixed.rotation, plan.ctx
    if isinstance(known, NoRotation):
        return known
    caches = plan.at_read is not None or not plan.fixed.one_key  # else every region's keys are needed now
    one_axis = ctx.coordinates is None
    if known is not None and caches and one_axis and ctx.first is not None and ctx.query_positions.shape[1] == 1:
        return known.at(ctx.first, ctx.device)
    regions = region_rotations(plan.scheme, of_any_layer(ctx), stored=plan.stored)
    if any(region.rotation is not None and region.rotation.learned for region in regions):
        return None
    return partial(rotate_regions, regions)


def of_any_layer(ctx: PositionContext) -> PositionContext:
    """Positions of a call, where what belongs to one layer cannot be used."""
    return replace(
        ctx, hidden=PER_LAYER, extra_key_channels=PER_LAYER, projections=PER_LAYER, layer=PER_LAYER, kept=PER_LAYER
    )
