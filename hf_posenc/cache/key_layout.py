"""Key layout: pack the copies of a key, and its extra channels, into the one tensor a cache layer takes.

Regions that rotate keys differently have a copy each. Copies are stored as additional heads, those of a head side by
side: each is together in memory, which decodes up to twice as fast, and batch and heads of a region are one axis of
equal steps. Where a cache needs as many key heads as value heads, or keys have extra channels, copies are concatenated
along the channels.
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
    """What to cache of new keys.

    Args:
        copies: each ``[batch, kv_heads, new, head_dim]``.
        extra: extra channels, ``[batch, kv_heads, new, channels]``, or None.
        cache: that will take them.
        layer: index of the layer in the cache.
    """
    if extra is None and len(copies) > 1 and grows(cache, layer):
        return torch.stack(copies, dim=2).flatten(1, 2)
    parts = copies if extra is None else (*copies, extra)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def unpack_keys(
    keys: Tensor, copies: tuple[Tensor, ...], extra: Tensor | None
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """All cached keys as `pack_keys` was given the new ones, each ``[batch, kv_heads, key, …]``, views."""
    heads, width = copies[0].shape[1], copies[0].shape[-1]
    if keys.shape[1] > heads:
        return keys.view(keys.shape[0], heads, -1, *keys.shape[2:]).unbind(2), None
    found = keys[..., : len(copies) * width].split(width, dim=-1)
    return found, None if extra is None else keys[..., len(copies) * width :]


def grows(cache: Cache, layer: int | None) -> bool:
    """Whether a layer of a cache joins whatever it is given; one that is not there yet will."""
    return layer is None or layer >= len(cache.layers) or isinstance(cache.layers[layer], DynamicLayer)


def held_layer(cache: Cache | None, layer: int | None) -> Any:
    """A layer of a cache by its index; None where there is none, or none yet."""
    return None if cache is None or layer is None or layer >= len(cache.layers) else cache.layers[layer]


@contextmanager
def as_made(memory: Tensor) -> Iterator[None]:
    """Leave inference mode where a cache's memory was made outside of it, and is written to there later."""
    if is_traced() or memory.is_inference() or not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def widen(cache: Cache, layer: int | None, new: Tensor, values: Tensor) -> None:
    """Widen keys that somebody else cached to our layout: the same in every region, with zeros as extra channels.

    Where each query head reads keys of its own, values are repeated as well.

    PEFT's prefix tuning puts trained keys of one head's width into a cache before anything is computed.

    Args:
        cache: that takes new keys next.
        layer: index of the layer in the cache.
        new: the keys to come, packed.
        values: those to come.

    Raises:
        InvalidInput: the cache was made for wider keys: a static one stays as wide when it is reset.
    """
    if layer is None or layer >= len(cache.layers):
        return
    held = cache.layers[layer]
    keys = getattr(held, "keys", None)
    if keys is None or keys.numel() == 0:
        return
    if keys.shape[1] < new.shape[1]:
        with as_made(keys):
            held.values = held.values.repeat_interleave(values.shape[1] // held.values.shape[1], dim=1)
            held.keys = keys.repeat_interleave(new.shape[1] // keys.shape[1], dim=1)
    elif keys.shape[-1] > new.shape[-1]:
        raise InvalidInput(
            f"The cache was made for keys of {keys.shape[-1]} numbers by another scheme, but keys of this scheme have "
            f"{new.shape[-1]}. Pass a new cache."
        )
    elif keys.shape[-1] < new.shape[-1]:
        copies, extra = divmod(new.shape[-1], keys.shape[-1])
        with as_made(keys):
            held.keys = functional.pad(torch.cat([keys] * copies, dim=-1), (0, extra))
