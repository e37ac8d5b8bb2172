"""Check that a KV cache fits a call: its kind, its layers, its rows and the room it has left.

transformers meets each of these as an index or a shape out of range inside a kernel, or not at all: a growing cache of
one row would serve every row of a batch. Some of its cache layers drop the keys that left a sliding window, which only
layers with that window may have; some hold a recurrent state and no keys.
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

QUANTISED = (QuantizedLayer, getattr(cache_utils, "BaseQuantizedLayer", QuantizedLayer))  # 5.4 has the first only
GROWING = (DynamicLayer, PreallocatedLayer, LengthRotatedLayer, EvictingLayer)  # they hold what attention needs
FRESH = "Pass DynamicCache(), or none."


def check_kind(cache: Any) -> None:
    """Refuse a KV cache that is none.

    Raises:
        InvalidInput: it is a tuple, a name, or anything else.
    """
    if cache is not None and not isinstance(cache, Cache):
        raise InvalidInput(
            f"The KV cache must be a Cache of transformers, got {shown(cache)}. Pass DynamicCache(), or nothing."
        )


def check_fit(cache: Cache | None, layers: int, batch: int, length: int) -> None:
    """Refuse a cache that cannot take ``length`` tokens of ``batch`` rows in every one of ``layers`` layers.

    Raises:
        InvalidInput: it has fewer layers, other rows, or no room left.
    """
    held = getattr(cache, "layers", None)
    if not held:
        return
    if len(held) < layers and getattr(cache, "layer_class_to_replicate", None) is None:
        raise InvalidInput(
            f"The cache has {len(held)} layers, and this model {layers}. "
            "Make it from the configuration of this model, or pass DynamicCache()."
        )
    keys = next((layer.keys for layer in held if isinstance(getattr(layer, "keys", None), Tensor)), None)
    if keys is not None and keys.ndim == 4 and keys.numel() and keys.shape[0] != batch:
        raise InvalidInput(
            f"The cache holds {keys.shape[0]} rows, and the call has {batch}. "
            "Pass the rows it was filled with, or call its batch_repeat_interleave or batch_select_indices first."
        )
    number = first_full_layer(cache)
    room = None if number is None else getattr(held[number], "max_cache_len", None)
    if not isinstance(room, int) or room < 1:
        return
    past = _tokens_in(held[number])
    if past + length > room:
        raise InvalidInput(
            f"The cache has room for {room} tokens, and holds {past} before {length} new ones. "
            f"Make it with max_cache_len={past + length} or more."
        )


def first_full_layer(cache: Cache) -> int | None:
    """Number of the first layer that keeps all keys; before it may stand layers that drop keys or hold none."""
    for number, layer in enumerate(cache.layers):
        if isinstance(layer, CacheLayerMixin) and not layer.is_sliding:
            return number
    return None


def _tokens_in(layer: Any) -> int:
    """How many tokens a static layer holds, as far as that is known without waiting for a device."""
    if not layer.is_initialized or is_traced() or layer.keys.device.type != "cpu":
        return 0
    return int(layer.get_seq_length())


def check_layers(cache: Cache | None, length: int, schemes: Iterable[Scheme], attentions: Iterable[Any]) -> None:
    """Refuse a cache of which a layer holds no keys, has dropped some, or rounds what a scheme sums over.

    Args:
        cache: of self-attention.
        length: number of new tokens.
        schemes: of the layers of the model.
        attentions: patched modules of the model; each says which layer of the cache is its own, and what it sees.

    Raises:
        BackendCannotCarry: it rounds what a scheme stores beside the keys.
        InvalidInput: a layer holds no keys or has dropped some.
    """
    for number, layer in enumerate(() if cache is None else cache.layers):
        if type(layer) in GROWING:  # the usual case, checked at every decoded token
            continue
        own = [one for one in attentions if one.layer_idx == number]
        if not own:  # of a layer that is no attention
            continue
        if not isinstance(layer, CacheLayerMixin):
            raise InvalidInput(f"Layer {number} of the cache is a {type(layer).__name__}, which holds no keys. {FRESH}")
        if layer.is_sliding and layer.get_mask_sizes(length)[1] > 0:
            _check_window(number, layer, own[0].window or own[0].chunk)
        if isinstance(layer, QUANTISED):
            _check_exact(schemes)


def _check_window(number: int, layer: Any, window: int | None) -> None:
    """A layer that has dropped keys keeps at least those in the window of its attention."""
    if window is None:
        raise InvalidInput(
            f"Layer {number} of the cache is a {type(layer).__name__} that has dropped keys, and the attention of "
            f"this model has no sliding window. {FRESH}"
        )
    width = layer.max_cache_len if isinstance(layer, StaticLayer) else layer.sliding_window
    if width < window:
        raise InvalidInput(
            f"Layer {number} of the cache has room for {width} tokens and is full, and the sliding window of this "
            f"model is {window} tokens wide. Make the cache with max_cache_len={window} or more."
        )


def _check_exact(schemes: Iterable[Scheme]) -> None:
    """Gates are summed over the whole text, and their rounding with them."""
    for scheme in schemes:
        if implements(scheme, "extra_key_channels"):
            raise BackendCannotCarry(
                f"Scheme {scheme.shown_name!r} stores gates beside the keys, which a quantised cache would round. "
                f"{FRESH}"
            )
