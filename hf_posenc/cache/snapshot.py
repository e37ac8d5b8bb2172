"""Snapshot of a layer of a KV cache, to restore where a call is refused after it has written to the cache.

Some refusals are known only where attention is computed, and the keys are in the cache by then: the call made again in
another way would have its tokens twice in that layer. What a layer of a growing cache holds are references, which are
put back. A static layer has its new keys behind those that count, and gets its count back; one that slides and is full
has overwritten the oldest, and stays as it is.
"""

from __future__ import annotations

from typing import Any

from transformers import Cache, StaticLayer

COUNT = "cumulative_length"  # of a static layer, a tensor that is added to in place


class LayerSnapshot:
    """A layer of a cache as it is before new keys are written to it.

    Args:
        cache: of self-attention.
        number: of the layer; one that is not there yet is removed again.
    """

    def __init__(self, cache: Cache, number: int) -> None:
        self.cache, self.number = cache, number
        self.layer: Any = cache.layers[number] if number < len(cache.layers) else None
        self.state = {} if self.layer is None else dict(vars(self.layer))
        if isinstance(self.layer, StaticLayer) and COUNT in self.state:
            self.state[COUNT] = self.state[COUNT] * 1  # a number, or a copy

    def restore(self) -> None:
        """Make the layer what it was."""
        if self.layer is None:
            del self.cache.layers[self.number :]
            return
        vars(self.layer).clear()
        vars(self.layer).update(self.state)
