"""Values of a scheme that live as long as a KV cache: what depends on its weights and on distances alone.

A decoded token needs the projections of every distance behind it, and nothing of them has changed since the last
token. They are kept beside the keys, which the same weights made, and go with them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import Cache

from hf_posenc.core.tracing import is_traced

KEPT: WeakKeyDictionary[Cache, dict[int, dict[Hashable, Any]]] = WeakKeyDictionary()
"""Of a cache: by number of the layer, what its scheme keeps. No attribute: those become inputs of an exported graph."""


def kept_values(cache: Cache | None, layer: int | None) -> dict[Hashable, Any] | None:
    """What the scheme of a layer keeps with a cache, before the cache takes the new keys.

    None without a cache, with a gradient, in a traced graph, and for a static cache, which counts its tokens on its
    device and may be used again after the weights have changed.
    """
    if cache is None or layer is None or torch.is_grad_enabled() or is_traced():
        return None
    held = cache.get_seq_length(layer)
    if not isinstance(held, int):
        return None
    layers = KEPT.setdefault(cache, {})
    if held == 0:  # a new text, perhaps after a training step
        layers[layer] = {}
    return layers.setdefault(layer, {})
