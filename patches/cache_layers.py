"""Refuse a KV cache whose layers cannot hold what attention needs, before anything is computed.

Llama, GPT-2 and BERT attend to every key. transformers has cache layers for other models, too: some drop the keys that
left a sliding window, some hold a recurrent state and no keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import cache_utils
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache, QuantizedLayer, StaticLayer

from hf_posenc.errors import BackendCannotCarry, InvalidInput
from hf_posenc.schemes.base import Scheme, has

QUANTISED = (QuantizedLayer, getattr(cache_utils, "BaseQuantizedLayer", QuantizedLayer))  # 5.4 has the first only
FRESH = "Pass DynamicCache(), or none."


def check_cache(cache: Any, tokens: Tensor | None, schemes: Iterable[Scheme]) -> None:
    """The cache of a call of a base model.

    Args:
        cache: what the caller passed as ``past_key_values``.
        tokens: ids or embeddings of the call, ``[batch, query, …]``.
        schemes: of the layers of the model.

    Raises:
        BackendCannotCarry: it rounds what a scheme stores beside the keys.
        InvalidInput: it is no cache, a layer of it holds no keys or has dropped some, or it has no room for the tokens.
    """
    if cache is None or tokens is None:
        return
    if not isinstance(cache, Cache):
        raise InvalidInput(f"past_key_values is a {type(cache).__name__}, and a transformers Cache is needed. {FRESH}")
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    for number, layer in enumerate(own.layers):
        if not isinstance(layer, CacheLayerMixin):
            raise InvalidInput(f"Layer {number} of the cache is a {type(layer).__name__}, which holds no keys. {FRESH}")
        if layer.is_sliding and layer.get_mask_sizes(tokens.shape[1])[1] > 0:
            raise InvalidInput(
                f"Layer {number} of the cache is a {type(layer).__name__} that has dropped keys, and the attention of "
                f"this model has no sliding window. {FRESH}"
            )
        if isinstance(layer, QUANTISED):
            _check_exact(schemes)
    if own.layers and not torch.compiler.is_compiling():
        _check_room(own.layers[0], tokens)


def _check_exact(schemes: Iterable[Scheme]) -> None:
    """Gates are summed over the whole text, and their rounding with them."""
    for scheme in schemes:
        if has(scheme, "carry"):
            raise BackendCannotCarry(
                f"Scheme {scheme.extra_repr()!r} stores gates beside the keys, which a quantised cache would round. "
                f"{FRESH}"
            )


def _check_room(layer: CacheLayerMixin, tokens: Tensor) -> None:
    """Rows and columns of a layer that holds keys already, or that has a fixed number of places."""
    batch, length = tokens.shape[:2]
    keys = layer.keys if layer.is_initialized else None
    if isinstance(keys, Tensor) and keys.numel() and len(keys) != batch:
        raise InvalidInput(
            f"The cache holds {len(keys)} rows, and the input has {batch}. Pass the rows that the cache was filled "
            "with, or repeat or select those of the cache first."
        )
    if not isinstance(layer, StaticLayer) or layer.is_sliding:
        return
    held = layer.get_seq_length()
    if isinstance(held, Tensor) and held.device.type != "cpu":  # to know its value would cost a wait
        return
    if int(held) + length > layer.max_cache_len:
        raise InvalidInput(
            f"The cache has room for {layer.max_cache_len} tokens, of which {int(held)} are taken, and {length} more "
            "are given. Make a StaticCache with a larger max_cache_len."
        )
