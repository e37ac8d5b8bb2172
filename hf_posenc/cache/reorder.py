"""Follow a KV cache through reordering, repetition and selection of its sequences (beam search).

Beam search, contrastive search and user code rearrange a cache between two forward passes. The first layer of a cache
reports every such change to a follower.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from transformers import Cache, CacheLayerMixin

FOLLOWERS: WeakKeyDictionary[CacheLayerMixin, Any] = WeakKeyDictionary()
"""Follower of each layer's rows: a `hf_posenc.cache.key_positions.KeyPositions`, whose file imports this one.

Not an attribute of the layer: it would be an input of exported graphs.
"""


@lru_cache(maxsize=64)
def follower_class(cls: type[CacheLayerMixin]) -> type[CacheLayerMixin]:
    """Subclass of a cache layer's class that reports every change of its rows to its follower."""

    class Following(cls):  # type of the layer at run time
        _layer_type = None  # with a type it would replace ``cls`` in transformers' tables

        def reorder_cache(self, beam_idx: Tensor) -> None:
            """Reorder the beams."""
            super().reorder_cache(beam_idx)
            FOLLOWERS[self].select(beam_idx)

        def batch_repeat_interleave(self, repeats: int) -> None:
            """Repeat every row."""
            super().batch_repeat_interleave(repeats)
            FOLLOWERS[self].repeat(repeats)

        def batch_select_indices(self, indices: Tensor) -> None:
            """Select rows."""
            super().batch_select_indices(indices)
            FOLLOWERS[self].select(indices)

        def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
            """Copy and pickle by the original class: this class cannot be imported by name."""
            return _empty, (cls,), (vars(self), FOLLOWERS[self])

        def __setstate__(self, state: tuple[dict[str, Any], Any]) -> None:
            self.__dict__.update(state[0])
            FOLLOWERS[self] = state[1]

    # An exporter looks a class up by its path, and a graph needs ``cls`` alone.
    Following.__module__, Following.__name__, Following.__qualname__ = cls.__module__, cls.__name__, cls.__qualname__
    return Following


def _empty(cls: type[CacheLayerMixin]) -> CacheLayerMixin:
    """Empty layer, which `copy` and `pickle` fill."""
    return object.__new__(follower_class(cls))  # type: ignore[arg-type]  # classes are hashable


def follow_rows(cache: Cache, follower: Any) -> None:
    """Let the first layer of a cache report every change of its rows to a follower."""
    if not cache.layers:
        cache.layers.append(cache.layer_class_to_replicate())  # as its first update would
    layer = cache.layers[0]
    if layer not in FOLLOWERS:
        layer.__class__ = follower_class(type(layer))  # type: ignore[arg-type]
        FOLLOWERS[layer] = follower
