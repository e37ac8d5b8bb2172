"""Prepare the KV cache of a forward pass: make, check and mark it, and choose its layers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from torch import Tensor, nn
from transformers import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

from hf_posenc.cache.eviction import EVICTS, EvictingLayer, can_evict, is_fresh, keep_padding
from hf_posenc.cache.length_rotated import LengthRotatedLayer
from hf_posenc.cache.preallocated import PreallocatedLayer
from hf_posenc.cache.provenance import mark_cache, self_attention_cache
from hf_posenc.cache.validate_cache import check_fit
from hf_posenc.core.tracing import is_traced
from hf_posenc.schemes.base import Scheme

OWN_LAYERS = (EvictingLayer, PreallocatedLayer)


def prepare_cache(
    module: nn.Module,
    cache: Cache | None,
    attentions: Sequence[Any],
    *,
    use_cache: bool | None,
    encoder: bool,
    tokens: Tensor,
    padding: Tensor | None,
    positions: Tensor | None,
) -> Cache | None:
    """The cache of a call, checked and marked. It is made here if a decoder should cache and the caller passed none.

    Layers of an empty growing cache are replaced by layers that evict keys, keep a rotated copy, or preallocate.

    Args:
        module: the base model.
        cache: the caller's cache.
        attentions: the patched modules, in the order of the layers.
        use_cache: whether to cache; None if the configuration decides.
        encoder: whether the call has hidden states of an encoder.
        tokens: ``[batch, query, …]``.
        padding: ``[batch, key]``, true at real tokens; None without padding.
        positions: positions of the new tokens; None if they count on from the cache.

    Raises:
        InvalidInput: the cache does not fit the call, or holds keys of another scheme.
    """
    config: Any = module.config
    if not attentions[0].is_causal:
        return cache
    caches = getattr(config, "use_cache", False) if use_cache is None else use_cache
    cache_class = own_cache_class(type(module)) if cache is None and caches else None
    if cache_class is not None and not (module.training and getattr(module, "gradient_checkpointing", False)):
        cache = DynamicCache(config=config) if cache_class is DynamicCache else cache_class()
        if encoder:  # as the model itself would
            cache = EncoderDecoderCache(cache, DynamicCache(config=config))
    own = self_attention_cache(cache)
    attentions = _running_layers(module, attentions)
    check_fit(own, len(attentions), *tokens.shape[:2])
    mark_cache(module, cache, attentions)
    if is_fresh(own):
        schemes = [attention.scheme for attention in attentions]
        evicts = any(scheme.kept_keys for scheme in schemes) and can_evict(positions, padding)
        choose_layers(own, schemes, evicts=evicts)
    keep_padding(own, padding)
    return cache


def choose_layers(cache: Cache, schemes: Sequence[Scheme], *, evicts: bool) -> None:
    """Choose the growing layers of an empty cache by the schemes of the model's layers.

    Layers of an earlier text are replaced, too. Of T5, a cache may have the encoder's number of layers.
    """
    preallocates = not cache.offloading and not is_traced()

    def layer_for(scheme: Scheme | None) -> DynamicLayer:
        if scheme is not None and scheme.row_rotation() is not None:
            return LengthRotatedLayer()
        if scheme is not None and scheme.kept_keys is not None and evicts:
            return EvictingLayer(*scheme.kept_keys)
        return PreallocatedLayer() if preallocates else DynamicLayer()

    layers = cache.layers or [DynamicLayer() for _ in schemes]
    cache.layers = [
        layer_for(scheme) if type(layer) is DynamicLayer or isinstance(layer, OWN_LAYERS) else layer
        for layer, scheme in zip_longest(layers, schemes[: len(layers)])
    ]
    vars(cache).pop(EVICTS, None)
    if any(isinstance(layer, EvictingLayer) for layer in cache.layers):
        setattr(cache, EVICTS, True)


def _running_layers(module: nn.Module, attentions: Sequence[Any]) -> Sequence[Any]:
    """Attention modules of the layers that a call runs. ``assistant_early_exit`` drafts with the first layers only.

    It lowers ``num_hidden_layers`` of the configuration, by which caches are made. Most models read it in their loop
    over layers. Other models run all layers, which such a cache does not fit. Layers that were removed from the model
    after the patch do not run either.
    """
    config: Any = module.config
    count = getattr(config, "num_hidden_layers", len(attentions))
    if count >= len(attentions) or not _reads_layer_count(type(module)):  # type: ignore[arg-type]
        return attentions
    present = set(module.modules())
    return [one for one in attentions if one in present and (one.layer_idx is None or one.layer_idx < count)]


@lru_cache(maxsize=64)
def _reads_layer_count(cls: type[Any]) -> bool:
    """Whether the forward of a base model reads the number of layers from its configuration."""
    return "num_hidden_layers" in inspect.unwrap(cls.forward).__code__.co_names


def own_cache_class(cls: type[Any]) -> type[DynamicCache] | None:
    """The class of the growing cache that a base model makes itself; None if it makes none.

    MiniMax, whose linear layers keep a state, makes its own class without the configuration.
    """
    forward = inspect.unwrap(cls.forward)
    values = (forward.__globals__.get(name) for name in forward.__code__.co_names)
    return next((value for value in values if isinstance(value, type) and issubclass(value, DynamicCache)), None)
