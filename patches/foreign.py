"""Keys that somebody else put into a cache: the trained prefixes of PEFT's prefix tuning."""

from __future__ import annotations

import torch
from torch.nn import functional
from transformers.cache_utils import Cache


def widen(cache: Cache, layer: int | None, width: int) -> None:
    """Make cached keys of one head's width as wide as the scheme's: the same in every region, with nothing beside them.

    Args:
        cache: that takes new keys next; ``[batch, heads, key, width]`` if it holds any of ours.
        layer: index of the layer in the cache.
        width: channels of the keys to come.
    """
    if layer is None or layer >= len(cache.layers):
        return
    held = cache.layers[layer]
    keys = getattr(held, "keys", None)
    if keys is None or keys.numel() == 0 or keys.shape[-1] == width:
        return
    copies, beside = divmod(width, keys.shape[-1])
    held.keys = functional.pad(torch.cat([keys] * copies, dim=-1), (0, beside))
