"""Attention of one layer (mixin of all adapters): rotate, cache and attend as the position scheme defines.

The host's own attention function computes the rotated call if it supports the scheme's terms; else the engine does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_posenc.attention.call import AttentionCall
from hf_posenc.cache.kept_values import kept_values
from hf_posenc.cache.key_layout import is_growing, pack_keys, unpack_keys, widen_cached_keys
from hf_posenc.cache.length_rotated import rotated_keys_of
from hf_posenc.cache.snapshot import LayerSnapshot
from hf_posenc.core.context import PositionContext
from hf_posenc.core.regions import Band
from hf_posenc.core.terms import Terms
from hf_posenc.core.torch_state import UNCHANGED, autocast_of
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import BackendCannotCarry, PosEncError
from hf_posenc.forward import paged
from hf_posenc.forward.call_plan import CallPlan, plan_of
from hf_posenc.forward.engine_backend import (
    FLASH_BACKENDS,
    AttentionOutput,
    ComputeCall,
    check_context_parallel,
    engine_for,
    host_function,
)
from hf_posenc.forward.host_calls import MODULES_FILL_PAGES, pop_cache
from hf_posenc.forward.layer import PatchedLayer
from hf_posenc.forward.rotate_qk import region_rotations, rotate_regions
from hf_posenc.forward.split_terms import SplitTerms
from hf_posenc.forward.validate_inputs import check_keywords

if TYPE_CHECKING:
    from transformers import Cache


class RotatedCall(NamedTuple):
    """Arguments of one layer's attention, with rotated queries and keys.

    Attributes:
        plan: values that layers share, with the mask.
        split: terms of the scheme.
        ctx: positions.
        queries: one tensor per region, ``[batch, heads, query, head_dim]``.
        keys: the different rotated copies of the keys, each ``[batch, kv_heads, key, head_dim]``.
        values: ``[batch, kv_heads, key, head_dim]``.
        autocast: the caller's autocast, which is off here; the host's own attention function runs under it.
    """

    plan: CallPlan
    split: SplitTerms
    ctx: PositionContext
    queries: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    values: Tensor
    autocast: torch.autocast | None


class PatchedAttention(PatchedLayer):
    """Mixin of patched attention modules, whose positions come from ``scheme``."""

    def project_query(self, x: Tensor) -> Tensor:
        """The layer's query projection, ``[n, width]`` to ``[heads, n, head_dim]``."""
        raise NotImplementedError

    def project_key(self, x: Tensor) -> Tensor:
        """The layer's key projection, ``[n, width]`` to ``[kv_heads, n, head_dim]``."""
        raise NotImplementedError

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        hidden: Tensor,
        mask: Any,
        host: dict[str, Any],
        cache: Cache | None = None,
    ) -> AttentionOutput:
        """Compute position-aware attention in six stages: context, rotate, cache, terms, scale, compute.

        Autocast is off during these stages: it would round positional biases and scores to bfloat16.

        Args:
            q: unrotated queries, ``[batch, heads, query, head_dim]``.
            k: unrotated keys of the new tokens, ``[batch, kv_heads, query, head_dim]``; ``v`` are their values.
            hidden: input of the projections, ``[batch, query, width]``.
            mask: mask that transformers made for the backend.
            host: the call's other keywords, for the host's own attention function.
            cache: KV cache; by default the one among the keywords, under any of its names.

        Returns:
            Mixed values ``[batch, query, heads, head_dim]`` and the attention weights, or None.

        Raises:
            BackendCannotCarry: the backend does not support the scheme.
            PositionOutOfTable: a position is past the end of the scheme's table.
        """
        if cache is None:
            cache = pop_cache(host)
        if isinstance(cache, EncoderDecoderCache):
            cache = cache.self_attention_cache
        elif isinstance(cache, PagedAttentionCache):  # it stays among the keywords
            host["cache"], cache = cache, None
        autocast = autocast_of(q.device)
        with UNCHANGED if autocast is None else torch.autocast(q.device.type, enabled=False):
            plan = plan_of(self, q, cache, mask, host)
            ctx = plan.ctx if plan.shared is not None else self._context(plan, hidden, cache, autocast)
            if plan.paged:
                return paged.attend(self, q, k, v, ctx, host)
            queries, keys, v = self._rotate(plan, ctx, q, k, v)
            del q, k  # rotated copies exist: free the memory
            may_fail = cache is not None and not plan.succeeded and not is_traced()
            before = LayerSnapshot(cache, self.layer_idx or 0) if may_fail else None
            try:
                keys, v, ctx = self._update(plan, ctx, keys, v, cache)
                split = plan.shared
                if split is None:
                    terms = plan.scheme.terms(ctx)
                    check_context_parallel(plan.scheme, terms, plan.mask)
                    split = SplitTerms.of(terms)
                if split.query_factor is not None:
                    queries = split.scaled(queries)
                output = self.mix(RotatedCall(plan, split, ctx, queries, keys, v, autocast), host, cache)
            except PosEncError:
                if before is not None:
                    before.restore()
                raise
            plan.succeeded = True
            return output

    def _context(
        self, plan: CallPlan, hidden: Tensor, cache: Cache | None, autocast: torch.autocast | None
    ) -> PositionContext:
        """Positions of the call with the values of this layer: hidden states, projections, number, kept values."""
        kept = None if plan.paged else kept_values(cache, self.layer_idx)
        if autocast is not None:  # autocast would cast inputs of the scheme's layers, but is off for them
            hidden = hidden.to(next((weight.dtype for weight in plan.scheme.parameters()), hidden.dtype))
        projections = LayerProjections(self, autocast)
        return replace(plan.ctx, hidden=hidden, projections=projections, layer=self.layer_idx, kept=kept)

    def _rotate(
        self, plan: CallPlan, ctx: PositionContext, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
        """Queries of every region, the different copies of the keys (or the copy to cache), and the values."""
        if plan.traits.prepares:
            q, k = plan.scheme.prepare(q, k)
        if plan.rotate is not None:
            return plan.rotate(q, k, v)
        return rotate_regions(region_rotations(plan.scheme, ctx, stored=plan.stored), q, k, v)

    def _update(
        self, plan: CallPlan, ctx: PositionContext, keys: tuple[Tensor, ...], v: Tensor, cache: Cache | None
    ) -> tuple[tuple[Tensor, ...], Tensor, PositionContext]:
        """Add new keys and values to the cache; return all keys and values, and the context with extra channels."""
        extra = plan.scheme.extra_key_channels(ctx) if plan.traits.extra_channels else None
        extra = None if extra is None else extra.to(keys[0].dtype)
        if cache is not None:
            single, layer = len(keys) == 1 and extra is None, self.layer_idx  # a property of some classes
            new = keys[0] if single else pack_keys(keys, extra, cache, layer)
            widen_cached_keys(cache, layer, new, v)
            cached, v = cache.update(new, v, layer)
            keys, extra = ((cached,), None) if single else unpack_keys(cached, keys, extra)
        if extra is not None:
            ctx = replace(ctx, extra_key_channels=extra[:, :, : ctx.key_positions.shape[1]].float())
        return keys, v, ctx

    def mix(self, call: RotatedCall, host: dict[str, Any], cache: Cache | None) -> AttentionOutput:
        """Compute a rotated call by the host's own attention function if it supports the terms, else by the engine."""
        if not call.split.scales_only:
            return self._attend_by_engine(call, host, cache)
        seen = call.plan.ctx.key_positions.shape[1]
        if call.keys[0].shape[2] > seen:  # later places of a static cache are unwritten
            call = call._replace(keys=(call.keys[0][:, :, :seen],), values=call.values[:, :, :seen])
        with call.autocast or UNCHANGED:
            return self._attend_by_host(call, host)

    def _attend_by_host(self, call: RotatedCall, host: dict[str, Any]) -> AttentionOutput:
        plan, q, k, v = call.plan, call.queries[0], call.keys[0], call.values
        if plan.function is None:
            function = ALL_ATTENTION_FUNCTIONS.get_interface(plan.backend, self.host_eager)
            plan.function = host_function(function, q, k, v, plan.backend)
        if MODULES_FILL_PAGES and "cache" in host:  # else the attention function writes to the pages
            k, v = host.pop("cache").update(key_states=k, value_states=v, layer_idx=self.layer_idx, kwargs=host)
        scaling = getattr(self, self.score_factor) * call.split.terms.logit_scale
        return plan.function(self, q, k, v, plan.mask, dropout=self.live_dropout, scaling=scaling, **host)

    def _attend_by_engine(self, call: RotatedCall, host: dict[str, Any], cache: Cache | None) -> AttentionOutput:
        plan, split, ctx, queries, keys, v, _ = call
        if len(keys) > 1 or len(split.key_copies) > 1:
            keys = split.keys_by_region(keys)
        terms, softcap, model_sink = split.terms, host.get("softcap"), host.get("s_aux")
        if model_sink is not None:
            terms = with_sink(terms, model_sink)
        rotated_keys = None
        if terms.row_rotation is not None:
            rotated_keys = rotated_keys_of(cache, self.layer_idx, rows=queries[0].shape[2])
        window = host.get("sliding_window") if plan.backend in FLASH_BACKENDS else None
        if window is not None:  # masks of these backends hide no keys; transformers refuses texts longer than a chunk
            terms = replace(terms, visible=terms.visible & Band(1 - window, window))
        scaling = getattr(self, self.score_factor)
        engine_call = AttentionCall(
            queries, keys, v, terms, ctx, plan.mask, scaling, self.live_dropout, rotated_keys, softcap=softcap,
            at_read=plan.at_read,
        )  # fmt: skip
        if plan.shared is None:  # every layer has its own terms
            return self._engine_for(engine_call, plan, host, cache)(engine_call)
        dtypes = (queries[0].dtype, keys[0].dtype, v.dtype)
        key = (engine_call.dropout, queries[0].shape, v.shape, *dtypes, model_sink is None)
        compute = plan.compute.get(key)
        if compute is None:
            compute = plan.compute[key] = self._engine_for(engine_call, plan, host, cache)
        return compute(engine_call)

    def _engine_for(
        self, call: AttentionCall, plan: CallPlan, host: dict[str, Any], cache: Cache | None
    ) -> ComputeCall:
        """Function by which the engine computes calls like this one, after a check of the layer's own keywords."""
        window = self.window if "sliding_window" in host else None
        check_keywords(host, plan.scheme, causal=call.ctx.causal, honoured=self.heeded_keywords, window=window)
        if plan.backend in FLASH_BACKENDS and cache is not None and not is_growing(cache, self.layer_idx):
            raise BackendCannotCarry(  # FlashAttention takes no mask to hide unwritten keys
                f"The attention backend {plan.backend!r} would read unwritten keys of a static cache. "
                'Use a growing cache (cache_implementation=None), or the backend "sdpa".'
            )
        return engine_for(call, plan.backend, plan.scheme, weights=bool(host.get("output_attentions")))


class LayerProjections:
    """A layer's own query and key projections under the caller's autocast, for schemes that project with them."""

    def __init__(self, attention: PatchedAttention, autocast: torch.autocast | None = None) -> None:
        self.attention, self.autocast = attention, autocast or UNCHANGED

    def query(self, x: Tensor) -> Tensor:
        """Project ``[n, width]`` to queries ``[heads, n, head_dim]``."""
        with self.autocast:
            return self.attention.project_query(x)

    def key(self, x: Tensor) -> Tensor:
        """Project ``[n, width]`` to keys ``[kv_heads, n, head_dim]``."""
        with self.autocast:
            return self.attention.project_key(x)


def with_sink(terms: Terms, model_sink: Tensor) -> Terms:
    """Terms with the model's own attention sink ``[heads]`` added to the sink of the scheme, if there is one."""
    sink = model_sink if terms.sink is None else torch.logaddexp(model_sink.float(), terms.sink.float())
    return replace(terms, sink=sink)
