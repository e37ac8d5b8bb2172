"""The attention of one layer, once its queries and keys are rotated: by the host's own function, or by the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_posenc.attention.call import AttentionCall
from hf_posenc.cache.length_rotated import length_rotation_of
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import Terms
from hf_posenc.forward import paged
from hf_posenc.forward.call_plan import CallPlan
from hf_posenc.forward.engine_backend import (
    PACKAGES,
    AttentionOutput,
    ComputeCall,
    engine_for,
    for_queries,
    within_window,
)
from hf_posenc.forward.layer import PatchedLayer
from hf_posenc.forward.shared_terms import SharedTerms
from hf_posenc.forward.validate_inputs import check_keywords

if TYPE_CHECKING:
    from transformers import Cache


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


class MixesValues(PatchedLayer):
    """Part of the mixin of patched attention modules: what computes a rotated call."""

    def mix(self, call: RotatedCall, host: dict[str, Any], cache: Cache | None) -> AttentionOutput:
        """By the host's own attention function where that can carry the terms, else by the engine."""
        if not call.shared.plain:
            return self._by_engine(call, host, cache)
        seen = call.plan.ctx.key_positions.shape[1]
        if call.keys[0].shape[2] > seen:  # the rest of a static cache is not written yet
            call = call._replace(keys=(call.keys[0][:, :, :seen],), values=call.values[:, :, :seen])
        return self._by_host(call, host)

    def _by_host(self, call: RotatedCall, host: dict[str, Any]) -> AttentionOutput:
        plan, q, k, v = call.plan, call.queries[0], call.keys[0], call.values
        if plan.function is None:
            function = ALL_ATTENTION_FUNCTIONS.get_interface(plan.backend, self.host_eager)
            plan.function = for_queries(function, q, k)
        if "cache" in host:
            k, v = paged.for_host(host, k, v, self.layer_idx)
        scaling = getattr(self, self.score_factor) * call.shared.terms.logit_scale
        return plan.function(self, q, k, v, plan.mask, dropout=self.live_dropout, scaling=scaling, **host)

    def _by_engine(self, call: RotatedCall, host: dict[str, Any], cache: Cache | None) -> AttentionOutput:
        plan, shared, ctx, queries, keys, v = call
        if len(keys) != len(shared.key_copies) or len(keys) > 1:
            keys = tuple([keys[number % len(keys)] for number in shared.key_copies])
        terms, softcap, own_sink = shared.terms, host.get("softcap"), host.get("s_aux")
        if own_sink is not None:
            terms = with_sink(terms, own_sink)
        rotated_keys = (
            None if terms.row_rotation is None else length_rotation_of(cache, self.layer_idx, rows=queries[0].shape[2])
        )
        if plan.backend in PACKAGES:
            terms = within_window(terms, host.get("sliding_window"))
        scaling = getattr(self, self.score_factor)
        at_read = () if plan.at_read is None else plan.at_read.rotations
        one = AttentionCall(
            queries, keys, v, terms, ctx, plan.mask, scaling, self.live_dropout, rotated_keys, softcap=softcap,
            at_read=at_read,
        )  # fmt: skip
        if plan.shared is None:  # every layer has its own terms
            return self._engine_for(one, plan, host, cache)(one)
        kind = (one.dropout, queries[0].shape, v.shape, queries[0].dtype, keys[0].dtype, v.dtype, own_sink is None)
        compute = plan.compute.get(kind)
        if compute is None:
            compute = plan.compute[kind] = self._engine_for(one, plan, host, cache)
        return compute(one)

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
