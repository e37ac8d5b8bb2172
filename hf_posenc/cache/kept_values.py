"""Values of a scheme that live as long as a KV cache: they depend on weights and distances alone.

A decoded token needs the projections of every distance before it, which have not changed since the last token. They
are stored with the keys that the same weights made.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import Cache

from hf_posenc.core.tracing import is_traced

KEPT: WeakKeyDictionary[Cache, dict[int, dict[Hashable, Any]]] = WeakKeyDictionary()
"""Values by cache and number of the layer. Not an attribute of the cache: it would be an input of exported graphs."""


def kept_values(cache: Cache | None, layer: int | None) -> dict[Hashable, Any] | None:
    """Values that a layer's scheme keeps with a cache, before the cache takes the new keys.

    None without a cache, with gradients, in traced graphs, and for a static cache. A static cache counts its tokens on
    its device, and may be reused after the weights have changed.
    """
    if cache is None or layer is None or torch.is_grad_enabled() or is_traced():
        return None
    length = cache.get_seq_length(layer)
    if not isinstance(length, int):
        return None
    layers = KEPT.setdefault(cache, {})
    if length == 0:  # a new text, perhaps after a training step
        layers[layer] = {}
    return layers.setdefault(layer, {})
