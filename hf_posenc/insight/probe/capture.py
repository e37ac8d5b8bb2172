"""Capture the attention calls of a live model: queries, keys, values and terms of every layer.

A patched layer is intercepted where it passes a call on. A model without a scheme carries ``host`` meanwhile: its own
positions, which computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.attention.call import AttentionCall
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import Terms
from hf_posenc.forward.attention import with_sink
from hf_posenc.forward.call_plan import CallPlan
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.patching.patch import patch_model, unpatch_model
from hf_posenc.patching.state import base_model_of, is_patched

CallCallback = Callable[[int, AttentionCall], None]
"""Called with the layer and its attention call."""


@contextmanager
def with_a_scheme(model: nn.Module) -> Iterator[None]:
    """Inside the block, a model without a scheme carries ``host``.

    Raises:
        UnsupportedModel: no adapter knows the model.
    """
    if is_patched(model):
        yield
        return
    patch_model(model, "host")
    try:
        yield
    finally:
        unpatch_model(model)


@contextmanager
def capture_attention(model: nn.Module, on_call: CallCallback) -> Iterator[None]:
    """Inside the block, call ``on_call(layer, call)`` for every self-attention of a forward pass of a patched model."""
    attentions = attentions_of(model)
    try:
        for layer, attention in enumerate(attentions):
            capture(attention, layer, on_call)
        yield
    finally:
        for attention in attentions:
            for name in ("_by_host", "_by_engine"):
                attention.__dict__.pop(name, None)


def attentions_of(model: nn.Module) -> list[Any]:
    """Return the self-attention modules of a model, patched or not, in layer order."""
    base, adapter = base_model_of(model)
    return list(base.__dict__.get(ATTENTIONS) or adapter.attentions(base))


def capture(attention: Any, layer: int, on_call: CallCallback) -> None:
    """Wrap both methods by which a patched layer passes a call on: to the model's function or to the engine."""
    by_host, by_engine = attention._by_host, attention._by_engine

    def to_host(q: Tensor, k: Tensor, v: Tensor, terms: Terms, mask: Any, host: dict[str, Any], *rest: Any) -> Any:
        factor = getattr(attention, attention.score_factor)
        on_call(layer, plain_call(q, k, v, mask, factor, attention.is_causal, host, terms))
        return by_host(q, k, v, terms, mask, host, *rest)

    def to_engine(
        q: tuple[Tensor, ...],
        k: tuple[Tensor, ...],
        v: Tensor,
        terms: Terms,
        ctx: PositionContext,
        plan: CallPlan,
        host: dict[str, Any],
        *rest: Any,
    ) -> Any:
        seen = ctx.key_positions.shape[1]
        keys = tuple(one[:, :, :seen] for one in k)
        mask, factor = tensor_or_none(plan.mask), getattr(attention, attention.score_factor)
        at_read = () if plan.at_read is None else plan.at_read.rotations
        call = AttentionCall(q, keys, v[:, :, :seen], terms, ctx, mask, factor, at_read=at_read)
        on_call(layer, as_the_host(call.with_rotated_keys(), host))
        return by_engine(q, k, v, terms, ctx, plan, host, *rest)

    attention.__dict__.update(_by_host=to_host, _by_engine=to_engine)


def plain_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Any,
    scaling: float,
    causal: bool,
    host: Mapping[str, Any],
    terms: Terms | None = None,
) -> AttentionCall:
    """Build the `AttentionCall` of plain scaled dot-product attention, as the model's own function computes it."""
    positions = torch.arange(k.shape[2], device=k.device)[None]
    ctx = PositionContext(positions[:, -q.shape[2] :], positions, causal, contiguous=True)
    return as_the_host(AttentionCall((q,), (k,), v, terms or Terms(), ctx, tensor_or_none(mask), scaling), host)


def as_the_host(call: AttentionCall, host: Mapping[str, Any]) -> AttentionCall:
    """The call with what the model itself does to scores: a soft cap as in Gemma 2, an attention sink as in gpt-oss."""
    sink = host.get("s_aux")
    terms = call.terms if sink is None else with_sink(call.terms, sink)
    return replace(call, terms=terms, softcap=host.get("softcap"))


def tensor_or_none(mask: Any) -> Tensor | None:
    """Return a 4-D mask; other forms add nothing to causality for a text without padding, and become None."""
    return mask if isinstance(mask, Tensor) and mask.ndim == 4 else None
