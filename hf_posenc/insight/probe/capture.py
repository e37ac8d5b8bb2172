"""Capture the attention calls of a live model: queries, keys, values and terms of every layer.

Capturing does not change what is computed. A patched layer is intercepted where it passes a call on; an unpatched one
where it looks up its attention function in transformers' registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_posenc.attention.call import AttentionCall
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import Terms
from hf_posenc.errors import UnsupportedModel
from hf_posenc.forward.attention import PatchedAttention, with_sink
from hf_posenc.forward.call_plan import CallPlan
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.patches.general.attention import eager_of, goes_through_interface
from hf_posenc.patching.patch import patch_model, unpatch_model
from hf_posenc.patching.state import base_model_of

CallCallback = Callable[[int, AttentionCall], None]
"""Called with the layer and its attention call."""

FUNCTION = "hf_posenc_probe"
CAPTURE = "posenc_capture"  # attribute of an unpatched attention module while it is captured


@dataclass(frozen=True)
class Capture:
    """State of an unpatched attention module that is captured: the callback, and its own config and eager function."""

    layer: int
    on_call: CallCallback
    config: Any
    eager: Any


@contextmanager
def capturable_attention(model: nn.Module) -> Iterator[None]:
    """Inside the block, a model whose own attention cannot be captured carries the scheme ``host``: its own positions.

    Some compute attention in their modules, and look up no function for it.
    """
    attention = attentions_of(model)[0]
    if isinstance(attention, PatchedAttention) or goes_through_interface(attention):
        yield
        return
    patch_model(model, "host")
    try:
        yield
    finally:
        unpatch_model(model)


@contextmanager
def capture_attention(model: nn.Module, on_call: CallCallback) -> Iterator[None]:
    """Inside the block, call ``on_call(layer, call)`` for every self-attention of a forward pass, patched or not.

    Raises:
        UnsupportedModel: no adapter knows the model.
    """
    attentions = attentions_of(model)
    try:
        for layer, attention in enumerate(attentions):
            if isinstance(attention, PatchedAttention):
                capture_patched(attention, layer, on_call)
            else:
                capture_unpatched(attention, Capture(layer, on_call, attention.config, eager_of(type(attention))))
        yield
    finally:
        for attention in attentions:
            release(attention)


def attentions_of(model: nn.Module) -> list[Any]:
    """Return the self-attention modules of a model, patched or not, in layer order."""
    base, adapter = base_model_of(model)
    return list(base.__dict__.get(ATTENTIONS) or adapter.attentions(base))


def capture_patched(attention: Any, layer: int, on_call: CallCallback) -> None:
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


def capture_unpatched(attention: Any, capture: Capture) -> None:
    """Point an unpatched layer to `captured_attention`, which calls the function it had before."""
    attention.__dict__[CAPTURE] = capture
    attention.config = copy(capture.config)
    attention.config._attn_implementation = FUNCTION


def captured_attention(
    module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float | None = None, **host: Any
) -> Any:
    """Attention function, as transformers calls it: report the call, then run the module's own function.

    Raises:
        UnsupportedModel: the model adds a bias of its own, which the reported call would lack.
    """
    if host.get("position_bias") is not None:
        raise UnsupportedModel(
            f"A {type(module).__name__} adds a bias of its own to its scores, which cannot be read off the call. "
            'Patch the model with scheme "host", which computes the same, and capture that.'
        )
    capture: Capture = module.__dict__[CAPTURE]
    factor = q.shape[-1] ** -0.5 if scaling is None else scaling
    capture.on_call(capture.layer, plain_call(q, k, v, mask, factor, module.is_causal, host))
    function = ALL_ATTENTION_FUNCTIONS.get_interface(capture.config._attn_implementation, capture.eager)
    return function(module, q, k, v, mask, scaling=scaling, **host)


AttentionInterface.register(FUNCTION, captured_attention)  # used by captured modules only


def release(attention: Any) -> None:
    """Undo `capture_patched` and `capture_unpatched`."""
    for name in ("_by_host", "_by_engine"):
        attention.__dict__.pop(name, None)
    if CAPTURE in attention.__dict__:
        attention.config = attention.__dict__.pop(CAPTURE).config


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
