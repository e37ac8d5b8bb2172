"""Attention module mixin of all adapters: rotate, cache and attend as the position scheme asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_posenc.attention.call import AttentionCall
from hf_posenc.cache.kept_values import kept_values
from hf_posenc.cache.key_layout import (
    pack_keys,
    unpack_keys,
    widen,
)
from hf_posenc.cache.length_rotated import length_rotation_of
from hf_posenc.cache.snapshot import LayerSnapshot
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import Terms
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import PosEncError
from hf_posenc.forward import paged
from hf_posenc.forward.call_plan import CallPlan, plan_of
from hf_posenc.forward.current_forward import OWNER
from hf_posenc.forward.engine_backend import (
    PACKAGES,
    ComputeCall,
    check_context_parallel,
    engine_for,
    for_queries,
    within_window,
)
from hf_posenc.forward.engine_backend import AttentionOutput as AttentionOutput
from hf_posenc.forward.host_calls import PARTED, cache_of_self_attention, take_cache
from hf_posenc.forward.rotate_qk import rotated, scale
from hf_posenc.forward.shared_terms import SharedTerms
from hf_posenc.forward.validate_inputs import check_keywords

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedConfig

    from hf_posenc.schemes.base import Scheme


class RotatedCall(NamedTuple):
    """A call of one layer whose queries and keys are rotated.

    Attributes:
        plan: what the layers share, with the mask.
        shared: terms of the scheme.
        ctx: positions.
        queries: one tensor a region, ``[batch, heads, query, head_dim]``.
        keys: the different copies, ``[batch, kv_heads, key, head_dim]``.
        values: ``[batch, kv_heads, key, head_dim]``.
    """

    plan: CallPlan
    shared: SharedTerms
    ctx: PositionContext
    queries: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    values: Tensor


class PatchedAttention(nn.Module):
    """Mixin of the patched attention modules: attention that leaves position to ``scheme``.

    Class attributes:
        host_eager: the host's own eager attention function.
        heeded_keywords: what the host's own forward passes to its attention function and the engine computes as well.
        score_factor: name of the attribute that is the factor of q · k.
        dropout_name: name of the attribute that drops attention weights, a module or a probability.
        flattens_ids: whether the base model takes ids with more axes, such as ``[batch, choice, token]``, as rows.
        batches_continuously: whether the model hands its attention what continuous batching hands to the model.
    """

    layer_idx: int | None
    scaling: float
    is_causal: bool
    config: PreTrainedConfig
    host_eager: ClassVar[Callable[..., tuple[Tensor, Tensor | None]]]
    heeded_keywords: ClassVar[frozenset[str]] = frozenset()
    score_factor: ClassVar[str] = "scaling"
    dropout_name: ClassVar[str] = "attention_dropout"
    flattens_ids: ClassVar[bool] = False
    batches_continuously: ClassVar[bool] = True

    @property
    def scheme(self) -> Scheme:
        """The layer's own scheme, or the one its model shares."""
        own = self._modules.get("posenc")
        return self.__dict__[OWNER]._modules["posenc"] if own is None else own

    @property
    def backend(self) -> str:
        """Name of the attention implementation in use."""
        return self.config._attn_implementation or "eager"

    @property
    def window(self) -> int | None:
        """Keys that a query of this layer sees at most; None for all before it."""
        return None

    @property
    def chunk(self) -> int | None:
        """Length of the parts of a text that see nothing of each other in this layer; None for one."""
        return None

    @property
    def live_dropout(self) -> float:
        """Probability of dropping an attention weight now; 0 outside training."""
        own: Any = getattr(self, self.dropout_name)
        return float(getattr(own, "p", own)) if self.training else 0.0  # of a module, or the number itself

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

        Args:
            q: ``[batch, heads, query, head_dim]``, not rotated; ``k`` and ``v`` likewise, of the new tokens.
            hidden: what they were projected from, ``[batch, query, width]``.
            mask: as transformers made it for the backend in use.
            host: the call's other keywords; handed to the host's own attention function where that computes the call.
            cache: takes the new keys; None where it is among the keywords, under any of its names, or there is none.

        Returns:
            Mixed values ``[batch, query, heads, head_dim]`` and the attention weights, or None.

        Raises:
            BackendCannotCarry: the scheme needs more of the backend than it can do.
            PositionOutOfTable: a position is past the scheme's end.
        """
        if cache is None:
            cache = take_cache(host)
        if isinstance(cache, PARTED):
            cache = cache_of_self_attention(cache, host)
        plan = plan_of(self, q, cache, mask, host)
        ctx = plan.ctx if plan.shared is not None else self._context(plan, hidden, cache)
        if plan.paged:
            return paged.attend(self, q, k, v, ctx, host)
        queries, keys, v = self._rotate(plan, ctx, q, k, v)
        del q, k  # memory, where they were rotated
        untried = cache is not None and not plan.succeeded and not is_traced()
        before = LayerSnapshot(cache, self.layer_idx or 0) if untried else None
        try:
            keys, v, ctx = self._update(plan, ctx, keys, v, cache)
            shared = plan.shared
            if shared is None:
                terms = plan.scheme.terms(ctx)
                check_context_parallel(plan.scheme, terms, plan.mask)
                shared = SharedTerms.of(terms)
            if shared.query_factor is not None:
                queries = scale(queries, shared.query_factor)
            found = self.mix(RotatedCall(plan, shared, ctx, queries, keys, v), host, cache)
        except PosEncError:
            if before is not None:
                before.restore()
            raise
        plan.succeeded = True
        return found

    def _context(self, plan: CallPlan, hidden: Tensor, cache: Cache | None) -> PositionContext:
        """Positions, with what belongs to this layer."""
        kept = None if plan.paged else kept_values(cache, self.layer_idx)
        own = LayerProjections(self)
        return replace(plan.ctx, hidden=hidden, projections=own, layer=self.layer_idx, kept=kept)

    def _rotate(
        self, plan: CallPlan, ctx: PositionContext, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
        """Queries of every region, the different copies of the keys or the one to cache, and the values."""
        if plan.fixed.prepares:
            q, k = plan.scheme.prepare(q, k)
        return rotated(plan.scheme, q, k, v, ctx, stored=plan.stored) if plan.rotate is None else plan.rotate(q, k, v)

    def _update(
        self, plan: CallPlan, ctx: PositionContext, keys: tuple[Tensor, ...], v: Tensor, cache: Cache | None
    ) -> tuple[tuple[Tensor, ...], Tensor, PositionContext]:
        """All keys and values in reach, the new ones added to the cache; and the context with their extra channels."""
        extra = plan.scheme.extra_key_channels(ctx) if plan.fixed.extra_channels else None
        extra = None if extra is None else extra.to(keys[0].dtype)
        if cache is not None:
            one = len(keys) == 1 and extra is None
            new = keys[0] if one else pack_keys(keys, extra, cache, self.layer_idx)
            widen(cache, self.layer_idx, new, v)
            cached, v = cache.update(new, v, self.layer_idx)
            keys, extra = ((cached,), None) if one else unpack_keys(cached, keys, extra)
        if extra is not None:
            ctx = replace(ctx, extra_key_channels=extra[:, :, : ctx.key_positions.shape[1]].float())
        return keys, v, ctx

    def mix(self, call: RotatedCall, host: dict[str, Any], cache: Cache | None) -> AttentionOutput:
        """By the host's own attention function where that can carry the terms, else by the engine."""
        plan, shared, ctx, queries, keys, v = call
        if shared.plain:
            k, seen = keys[0], plan.ctx.key_positions.shape[1]
            if k.shape[2] > seen:  # the rest of a static cache is not written yet
                k, v = k[:, :, :seen], v[:, :, :seen]
            return self._by_host(queries[0], k, v, shared.terms, plan.mask, host, plan)
        if len(keys) != len(shared.key_copies) or len(keys) > 1:
            keys = tuple([keys[number % len(keys)] for number in shared.key_copies])
        return self._by_engine(queries, keys, v, shared.terms, ctx, plan, host, cache)

    def _by_host(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        terms: Terms,
        mask: Any,
        host: dict[str, Any],
        plan: CallPlan,
    ) -> AttentionOutput:
        if plan.function is None:
            function = ALL_ATTENTION_FUNCTIONS.get_interface(plan.backend, self.host_eager)
            plan.function = for_queries(function, q, k)
        if "cache" in host:
            k, v = paged.for_host(host, k, v, self.layer_idx)
        scaling = getattr(self, self.score_factor) * terms.logit_scale
        return plan.function(self, q, k, v, mask, dropout=self.live_dropout, scaling=scaling, **host)

    def _by_engine(
        self,
        queries: tuple[Tensor, ...],
        keys: tuple[Tensor, ...],
        v: Tensor,
        terms: Terms,
        ctx: PositionContext,
        plan: CallPlan,
        host: dict[str, Any],
        cache: Cache | None,
    ) -> AttentionOutput:
        softcap, own_sink = host.get("softcap"), host.get("s_aux")
        if own_sink is not None:
            terms = with_sink(terms, own_sink)
        rotated_keys = (
            None if terms.row_rotation is None else length_rotation_of(cache, self.layer_idx, rows=queries[0].shape[2])
        )
        if plan.backend in PACKAGES:
            terms = within_window(terms, host.get("sliding_window"))
        scaling = getattr(self, self.score_factor)
        at_read = () if plan.at_read is None else plan.at_read.rotations
        call = AttentionCall(
            queries, keys, v, terms, ctx, plan.mask, scaling, self.live_dropout, rotated_keys, softcap=softcap,
            at_read=at_read,
        )  # fmt: skip
        if plan.shared is None:  # every layer has its own terms
            return self._engine_for(call, plan, host, cache)(call)
        kind = (call.dropout, queries[0].shape, v.shape, queries[0].dtype, keys[0].dtype, v.dtype, own_sink is None)
        compute = plan.compute.get(kind)
        if compute is None:
            compute = plan.compute[kind] = self._engine_for(call, plan, host, cache)
        return compute(call)

    def _engine_for(
        self, call: AttentionCall, plan: CallPlan, host: dict[str, Any], cache: Cache | None
    ) -> ComputeCall:
        """How the engine computes calls like this one; what the layer passes of its own is checked, once for all."""
        name, weights = plan.fixed.name, bool(host.get("output_attentions"))
        window = self.window if "sliding_window" in host else None
        check_keywords(host, plan.scheme, causal=call.ctx.causal, heeded=self.heeded_keywords, window=window)
        return engine_for(call, plan.backend, name, cache, self.layer_idx, weights=weights)


def with_sink(terms: Terms, own: Tensor) -> Terms:
    """Terms with the model's own attention sink ``[heads]``, beside one that the scheme may have."""
    return replace(terms, sink=own if terms.sink is None else torch.logaddexp(own.float(), terms.sink.float()))


class LayerProjections:
    """A layer's own query and key projections, without the scheme knowing the layer."""

    def __init__(self, attention: PatchedAttention) -> None:
        self.query, self.key = attention.project_query, attention.project_key
