"""Check that a KV cache fits a call: its kind, its layers, its rows and the room it has left.

transformers meets each of these as an index or a shape out of range inside a kernel, or not at all: a growing cache of
one row would serve every row of a batch.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import Cache, CacheLayerMixin

from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import InvalidInput, shown


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
