"""Key layout: pack the copies of a key, and its extra channels, into the one tensor a cache layer takes.

Regions that rotate keys differently have a copy each. Copies are stored as additional heads, next to each other for
each head. Each copy is then contiguous in memory, which decodes up to twice as fast. Batch and heads of a region form
one axis with a constant stride. If a cache needs as many key heads as value heads, or keys have extra channels, copies
are concatenated along the channels instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Cache, DynamicLayer

from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import InvalidInput


def pack_keys(copies: tuple[Tensor, ...], extra: Tensor | None, cache: Cache, layer: int | None) -> Tensor:
    """New keys in the layout of the cache.

    Args:
        copies: each ``[batch, kv_heads, new, head_dim]``.
        extra: extra channels, ``[batch, kv_heads, new, channels]``, or None.
        cache: KV cache that will take them.
        layer: index of the layer in the cache.
    """
    if extra is None and len(copies) > 1 and is_growing(cache, layer):
        return torch.stack(copies, dim=2).flatten(1, 2)
    parts = copies if extra is None else (*copies, extra)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def unpack_keys(
    keys: Tensor, copies: tuple[Tensor, ...], extra: Tensor | None
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Undo `pack_keys`: views of the copies and extra channels of all cached keys, ``[batch, kv_heads, key, …]``."""
    heads, width = copies[0].shape[1], copies[0].shape[-1]
    if keys.shape[1] > heads:
        return keys.view(keys.shape[0], heads, -1, *keys.shape[2:]).unbind(2), None
    unpacked = keys[..., : len(copies) * width].split(width, dim=-1)
    return unpacked, None if extra is None else keys[..., len(copies) * width :]


def is_growing(cache: Cache, layer: int | None) -> bool:
    """Whether a layer of a cache concatenates new keys; true for a layer that does not exist yet."""
    return layer is None or layer >= len(cache.layers) or isinstance(cache.layers[layer], DynamicLayer)


def layer_at(cache: Cache | None, layer: int | None) -> Any:
    """A layer of a cache by its index; None without a cache, or if the layer does not exist yet."""
    return None if cache is None or layer is None or layer >= len(cache.layers) else cache.layers[layer]


@contextmanager
def inference_mode_of(memory: Tensor) -> Iterator[None]:
    """Leave inference mode during the block if the cache's memory was made outside of inference mode."""
    if is_traced() or memory.is_inference() or not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def widen_cached_keys(cache: Cache, layer: int | None, new: Tensor, values: Tensor) -> None:
    """Widen keys that were cached without `pack_keys`: equal copies for all regions, zeros as extra channels.

    If each query head reads its own keys, keys and values are repeated by head. PEFT's prefix tuning puts trained keys
    of one head's width into an empty cache.

    Args:
        cache: KV cache that takes the new keys next.
        layer: index of the layer in the cache.
        new: new keys, packed.
        values: new values.

    Raises:
        InvalidInput: the cache holds wider keys. A static cache keeps its width when it is reset.
    """
    if layer is None or layer >= len(cache.layers):
        return
    cache_layer = cache.layers[layer]
    keys = getattr(cache_layer, "keys", None)
    if keys is None or keys.numel() == 0:
        return
    if keys.shape[1] < new.shape[1]:
        with inference_mode_of(keys):
            repeats = values.shape[1] // cache_layer.values.shape[1]
            cache_layer.values = cache_layer.values.repeat_interleave(repeats, dim=1)
            cache_layer.keys = keys.repeat_interleave(new.shape[1] // keys.shape[1], dim=1)
    elif keys.shape[-1] > new.shape[-1]:
        raise InvalidInput(
            f"The cache was made for keys with {keys.shape[-1]} channels by another scheme, but keys of this scheme "
            f"have {new.shape[-1]}. Pass a new cache."
        )
    elif keys.shape[-1] < new.shape[-1]:
        copies, extra = divmod(new.shape[-1], keys.shape[-1])
        with inference_mode_of(keys):
            cache_layer.keys = functional.pad(torch.cat([keys] * copies, dim=-1), (0, extra))
