"""How the copies of a key lie in a cache, which takes one tensor a layer.

Regions that rotate keys apart have a copy each. As further heads every copy lies together in memory, which decoding
reads up to twice as fast; a cache that needs as many heads of values as of keys, or keys with something beside them,
has the copies side by side in the channels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import Cache, DynamicLayer


def pack_keys(copies: tuple[Tensor, ...], beside: Tensor | None, cache: Cache, layer: int | None) -> Tensor:
    """What to cache of new keys.

    Args:
        copies: each ``[batch, kv_heads, new, head_dim]``.
        beside: what is carried with them, ``[batch, kv_heads, new, channels]``, or None.
        cache: that will take them.
        layer: index of the layer in the cache.
    """
    if beside is None and len(copies) > 1 and grows(cache, layer):
        return torch.cat(copies, dim=1)
    parts = copies if beside is None else (*copies, beside)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def unpack_keys(
    keys: Tensor, copies: tuple[Tensor, ...], beside: Tensor | None
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """All cached keys as `pack_keys` was given the new ones, each ``[batch, kv_heads, key, …]``, views."""
    heads, width = copies[0].shape[1], copies[0].shape[-1]
    if keys.shape[1] > heads:
        return keys.chunk(keys.shape[1] // heads, dim=1), None
    found = keys[..., : len(copies) * width].split(width, dim=-1)
    return found, None if beside is None else keys[..., len(copies) * width :]


def grows(cache: Cache, layer: int | None) -> bool:
    """Whether a layer of a cache joins whatever it is given; one that is not there yet will."""
    if layer is None or layer >= len(cache.layers):
        return True
    return isinstance(cache.layers[layer], DynamicLayer)


def widen(cache: Cache, layer: int | None, new: Tensor) -> None:
    """Make keys that somebody else cached as large as ours: the same in every region, with nothing beside them.

    PEFT's prefix tuning puts trained keys of one head's width into a cache before anything is computed.

    Args:
        cache: that takes new keys next.
        layer: index of the layer in the cache.
        new: the keys to come, packed.
    """
    if layer is None or layer >= len(cache.layers):
        return
    held = cache.layers[layer]
    keys = getattr(held, "keys", None)
    if keys is None or keys.numel() == 0:
        return
    if keys.shape[1] < new.shape[1]:
        held.keys = torch.cat([keys] * (new.shape[1] // keys.shape[1]), dim=1)
    elif keys.shape[-1] < new.shape[-1]:
        copies, beside = divmod(new.shape[-1], keys.shape[-1])
        held.keys = functional.pad(torch.cat([keys] * copies, dim=-1), (0, beside))
