"""Follow a KV cache through reordering, repetition and selection of its sequences (beam search).

Beam search, contrastive search and callers of their own rearrange a cache between two forward passes. The first layer
of a cache passes every such change on.
"""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import Cache, CacheLayerMixin

_CLASSES: dict[type[CacheLayerMixin], type[CacheLayerMixin]] = {}


class CacheRows(Protocol):
    """Something with a row for each row of the cache, or with one for all of them."""

    @property
    def rows(self) -> int:
        """How many rows it has."""

    def select(self, rows: Tensor) -> None:
        """Keep the rows of these numbers, in this order."""


FOLLOWERS: WeakKeyDictionary[CacheLayerMixin, CacheRows] = WeakKeyDictionary()
"""What follows the rows of a layer. It is no attribute, as those become inputs of an exported graph."""


def following(cls: type[CacheLayerMixin]) -> type[CacheLayerMixin]:
    """The class of a cache layer, with a follower that sees every change of its rows."""
    if cls in _CLASSES:
        return _CLASSES[cls]

    class Following(cls):  # made for the class that a layer happens to have
        _layer_type = None  # with a type it would take the place of ``cls`` in transformers' tables

        def reorder_cache(self, beam_idx: Tensor) -> None:
            """Beams change places."""
            super().reorder_cache(beam_idx)
            FOLLOWERS[self].select(beam_idx)

        def batch_repeat_interleave(self, repeats: int) -> None:
            """Every row is repeated."""
            super().batch_repeat_interleave(repeats)
            follower = FOLLOWERS[self]
            follower.select(torch.arange(follower.rows).repeat_interleave(repeats))

        def batch_select_indices(self, indices: Tensor) -> None:
            """Some rows are chosen."""
            super().batch_select_indices(indices)
            FOLLOWERS[self].select(indices)

        def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
            """Copied and pickled by the class it was made for: this one has no name to be found by."""
            return _empty, (cls,), (vars(self), FOLLOWERS[self])

        def __setstate__(self, state: tuple[dict[str, Any], CacheRows]) -> None:
            self.__dict__.update(state[0])
            FOLLOWERS[self] = state[1]

    # An exporter writes the path of a class and looks it up, and a graph needs ``cls`` alone.
    Following.__module__, Following.__name__, Following.__qualname__ = cls.__module__, cls.__name__, cls.__qualname__
    _CLASSES[cls] = Following
    return Following


def _empty(cls: type[CacheLayerMixin]) -> CacheLayerMixin:
    """A layer without content, for `copy` and `pickle` to fill."""
    return object.__new__(following(cls))


def follow_rows(cache: Cache, follower: CacheRows) -> None:
    """Have the first layer of a cache pass every change of its rows on."""
    if not cache.layers:
        cache.layers.append(cache.layer_class_to_replicate())  # as the cache itself does when it is first written to
    layer = cache.layers[0]
    if layer not in FOLLOWERS:
        layer.__class__ = following(type(layer))
        FOLLOWERS[layer] = follower
