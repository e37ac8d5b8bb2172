"""Check that a KV cache fits a call: its class, its layers, its rows and its remaining capacity.

transformers fails with an index or a shape out of range inside a kernel, or not at all: a growing cache of one row
would serve every row of a batch. Some of its cache layers drop keys outside a sliding window, which only layers with
that window may use. Some hold a recurrent state and no keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from transformers import Cache, CacheLayerMixin, DynamicLayer, StaticLayer, cache_utils
from transformers.cache_utils import QuantizedLayer

from hf_posenc.cache.eviction import EvictingLayer
from hf_posenc.cache.length_rotated import LengthRotatedLayer
from hf_posenc.cache.preallocated import PreallocatedLayer
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import BackendCannotCarry, InvalidInput, shown
from hf_posenc.schemes.base import Scheme, implements

QUANTIZED_LAYERS = (QuantizedLayer, getattr(cache_utils, "BaseQuantizedLayer", QuantizedLayer))  # 5.4 lacks the base
GROWING_LAYERS = (DynamicLayer, PreallocatedLayer, LengthRotatedLayer, EvictingLayer)  # they keep all visible keys
NEW_CACHE = "Pass DynamicCache(), or no cache."


def check_kind(cache: Any) -> None:
    """Refuse a KV cache that is no `Cache` of transformers, such as a tuple; raises `InvalidInput`."""
    if cache is not None and not isinstance(cache, Cache):
        raise InvalidInput(
            f"The KV cache must be a Cache of transformers, got {shown(cache)}. Pass DynamicCache(), or nothing."
        )


def check_fit(cache: Cache | None, layers: int, batch: int, length: int) -> None:
    """Refuse a cache that cannot take ``length`` tokens of ``batch`` rows in every one of ``layers`` layers.

    Raises:
        InvalidInput: the cache has too few layers, another number of rows, or too little capacity.
    """
    cache_layers = getattr(cache, "layers", None)
    if not cache_layers:
        return
    if len(cache_layers) < layers and getattr(cache, "layer_class_to_replicate", None) is None:
        raise InvalidInput(
            f"The cache has {len(cache_layers)} layers, but this model has {layers}. "
            "Make it from the configuration of this model, or pass DynamicCache()."
        )
    keys = next((layer.keys for layer in cache_layers if isinstance(getattr(layer, "keys", None), Tensor)), None)
    if keys is not None and keys.ndim == 4 and keys.numel() and keys.shape[0] != batch:
        raise InvalidInput(
            f"The cache holds {keys.shape[0]} rows, and the call has {batch}. "
            "Pass the same rows, or call its batch_repeat_interleave or batch_select_indices first."
        )
    number = first_full_layer(cache)
    capacity = None if number is None else getattr(cache_layers[number], "max_cache_len", None)
    if not isinstance(capacity, int) or capacity < 1:
        return
    past = _tokens_in(cache_layers[number])
    if past + length > capacity:
        raise InvalidInput(
            f"The cache has room for {capacity} tokens, and holds {past} before {length} new ones. "
            f"Make it with max_cache_len={past + length} or more."
        )


def first_full_layer(cache: Cache) -> int | None:
    """Number of the first layer that keeps all keys; layers before it may drop keys or hold none."""
    for number, layer in enumerate(cache.layers):
        if isinstance(layer, CacheLayerMixin) and not layer.is_sliding:
            return number
    return None


def _tokens_in(layer: Any) -> int:
    """Number of tokens in a static layer; 0 if that cannot be read without waiting for a device."""
    if not layer.is_initialized or is_traced() or layer.keys.device.type != "cpu":
        return 0
    return int(layer.get_seq_length())


def check_layers(cache: Cache | None, length: int, schemes: Iterable[Scheme], attentions: Iterable[Any]) -> None:
    """Refuse a cache with a layer that holds no keys, has dropped visible keys, or rounds values that a scheme sums.

    Args:
        cache: KV cache of self-attention.
        length: number of new tokens.
        schemes: schemes of the model's layers.
        attentions: patched modules of the model, with their window, chunk and layer of the cache.

    Raises:
        BackendCannotCarry: a quantized layer would round values that a scheme stores with the keys.
        InvalidInput: a layer holds no keys or has dropped visible keys.
    """
    if cache is None:
        return
    for number, layer in enumerate(cache.layers):
        if type(layer) in GROWING_LAYERS:  # the usual case, checked at every decoded token
            continue
        attention = next((module for module in attentions if module.layer_idx == number), None)
        if attention is None:  # a layer without attention
            continue
        if not isinstance(layer, CacheLayerMixin):
            name = type(layer).__name__
            raise InvalidInput(f"Layer {number} of the cache is a {name}, which holds no keys. {NEW_CACHE}")
        if layer.is_sliding and layer.get_mask_sizes(length)[1] > 0:
            _check_window_width(number, layer, attention.window or attention.chunk)
        if isinstance(layer, QUANTIZED_LAYERS):
            _check_rounding(schemes)


def _check_window_width(number: int, layer: Any, window: int | None) -> None:
    """Check that a layer that has dropped keys keeps all keys in the window of its attention."""
    if window is None:
        raise InvalidInput(
            f"Layer {number} of the cache is a {type(layer).__name__} that has dropped keys, but the attention of "
            f"this model has no sliding window. {NEW_CACHE}"
        )
    width = layer.max_cache_len if isinstance(layer, StaticLayer) else layer.sliding_window
    if width < window:
        raise InvalidInput(
            f"Layer {number} of the cache has room for {width} tokens and is full, but the sliding window of this "
            f"model is {window} tokens wide. Make the cache with max_cache_len={window} or more."
        )


def _check_rounding(schemes: Iterable[Scheme]) -> None:
    """Refuse schemes with extra key channels: gates are summed over the whole text, and so are their roundings."""
    for scheme in schemes:
        if implements(scheme, "extra_key_channels"):
            raise BackendCannotCarry(
                f"Scheme {scheme.shown_name!r} stores gates beside the keys, which a quantised cache would round. "
                f"{NEW_CACHE}"
            )
