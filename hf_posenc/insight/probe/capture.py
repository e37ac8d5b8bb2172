"""Attention calls of a live model, seen as they happen: queries, keys, values and terms of every layer.

Nothing is computed differently while somebody watches. A patched layer is met where it hands a call on; a host's own
where it asks for its attention function, of which transformers keeps a registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_posenc.attention.call import AttentionCall
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import Terms
from hf_posenc.patches.attention import PatchedAttention
from hf_posenc.patching.state import base_model_of

See = Callable[[int, AttentionCall], None]
FUNCTION = "hf_posenc_probe"
WATCH = "posenc_watch"  # of a host's attention module while it is watched


@dataclass(frozen=True)
class Watch:
    """What a host's layer is told while it is watched: who sees, and what it would do by itself."""

    layer: int
    see: See
    config: Any
    eager: Any


@contextmanager
def capture_attention(model: nn.Module, see: See) -> Iterator[None]:
    """Call ``see(layer, call)`` for every self-attention of a forward pass, patched or not, until the block ends.

    Raises:
        UnsupportedModel: no adapter knows the model.
    """
    attentions = attentions_of(model)
    kinds: dict[Any, Any] = dict(base_model_of(model)[1].attention)
    try:
        for layer, attention in enumerate(attentions):
            if isinstance(attention, PatchedAttention):
                watch_patched(attention, layer, see)
            else:
                watch_host(attention, Watch(layer, see, attention.config, kinds[type(attention)].host_eager))
        yield
    finally:
        for attention in attentions:
            release(attention)


def attentions_of(model: nn.Module) -> list[Any]:
    """The self-attention modules of a model, patched or not, in the order of the layers."""
    base, adapter = base_model_of(model)
    kinds = (*adapter.attention, *adapter.attention.values())
    return [m for m in base.modules() if type(m) in kinds and not getattr(m, "is_cross_attention", False)]


def watch_patched(attention: Any, layer: int, see: See) -> None:
    """Stand before both ways on which a patched layer hands a call on."""
    by_host, by_engine = attention._by_host, attention._by_engine

    def to_host(q: Tensor, k: Tensor, v: Tensor, terms: Terms, mask: Any, *rest: Any) -> Any:
        see(layer, plain_call(q, k, v, mask, attention.scaling, attention.is_causal, terms))
        return by_host(q, k, v, terms, mask, *rest)

    def to_engine(
        q: tuple[Tensor, ...],
        k: tuple[Tensor, ...],
        v: Tensor,
        terms: Terms,
        ctx: PositionContext,
        mask: Any,
        *rest: Any,
    ) -> Any:
        seen = ctx.key_positions.shape[1]
        keys = tuple(one[:, :, :seen] for one in k)
        see(layer, AttentionCall(q, keys, v[:, :, :seen], terms, ctx, tensor_or_none(mask), attention.scaling))
        return by_engine(q, k, v, terms, ctx, mask, *rest)

    attention.__dict__.update(_by_host=to_host, _by_engine=to_engine)


def watch_host(attention: Any, watch: Watch) -> None:
    """Have a host's own layer ask for `watched`, which calls the function it would have had."""
    attention.__dict__[WATCH] = watch
    attention.config = copy(watch.config)
    attention.config._attn_implementation = FUNCTION


def watched(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float | None = None, **host: Any) -> Any:
    """transformers' attention function of a host's own layer under watch."""
    watch: Watch = module.__dict__[WATCH]
    factor = q.shape[-1] ** -0.5 if scaling is None else scaling
    watch.see(watch.layer, plain_call(q, k, v, mask, factor, module.is_causal))
    function = ALL_ATTENTION_FUNCTIONS.get_interface(watch.config._attn_implementation, watch.eager)
    return function(module, q, k, v, mask, scaling=scaling, **host)


ALL_ATTENTION_FUNCTIONS.register(FUNCTION, watched)  # who does not ask for this name never meets it


def release(attention: Any) -> None:
    """Take everything off again."""
    for name in ("_by_host", "_by_engine"):
        attention.__dict__.pop(name, None)
    if WATCH in attention.__dict__:
        attention.config = attention.__dict__.pop(WATCH).config


def plain_call(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, causal: bool, terms: Terms | None = None
) -> AttentionCall:
    """A call without anything but scales: what the host's own attention function computes."""
    places = torch.arange(k.shape[2], device=k.device)[None]
    ctx = PositionContext(places[:, -q.shape[2] :], places, causal, contiguous=True)
    return AttentionCall((q,), (k,), v, terms or Terms(), ctx, tensor_or_none(mask), scaling)


def tensor_or_none(mask: Any) -> Tensor | None:
    """A mask over pairs; what backends have in its place says nothing that an unpadded text does not say itself."""
    return mask if isinstance(mask, Tensor) and mask.ndim == 4 else None
