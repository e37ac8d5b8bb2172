"""Refuse a KV cache whose layers cannot hold what attention needs, before anything is computed.

Some of transformers' cache layers drop the keys that left a sliding window, which only layers with that window may
have; some hold a recurrent state and no keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import Cache, CacheLayerMixin, DynamicLayer, StaticLayer, cache_utils
from transformers.cache_utils import QuantizedLayer

from hf_posenc.cache.eviction import EvictingLayer
from hf_posenc.cache.length_rotated import LengthRotatedLayer
from hf_posenc.cache.preallocated import PreallocatedLayer
from hf_posenc.errors import BackendCannotCarry, InvalidInput
from hf_posenc.schemes.base import Scheme, implements

QUANTISED = (QuantizedLayer, getattr(cache_utils, "BaseQuantizedLayer", QuantizedLayer))  # 5.4 has the first only
GROWING = (DynamicLayer, PreallocatedLayer, LengthRotatedLayer, EvictingLayer)  # they hold what attention needs
FRESH = "Pass DynamicCache(), or none."


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
                f"Scheme {scheme.extra_repr()!r} stores gates beside the keys, which a quantised cache would round. "
                f"{FRESH}"
            )
