"""Snapshot of a layer of a KV cache, to restore it if a call is refused after it has written to the cache.

Some calls are refused only when attention is computed, after their keys were cached. Without a snapshot, the layer
would hold the tokens twice when the call is repeated in another way. A layer of a growing cache gets its old tensors
back. A static layer gets its count back: keys after the count are ignored. A full sliding layer has overwritten its
oldest keys and is not restored.
"""

from __future__ import annotations

from typing import Any

from transformers import Cache, StaticLayer

COUNT = "cumulative_length"  # attribute of a static layer, a tensor that grows in place


class LayerSnapshot:
    """State of a cache layer before new keys are written to it.

    Args:
        cache: KV cache of self-attention.
        number: number of the layer; a layer that does not exist yet is removed again.
    """

    def __init__(self, cache: Cache, number: int) -> None:
        self.cache, self.number = cache, number
        self.layer: Any = cache.layers[number] if number < len(cache.layers) else None
        self.state = {} if self.layer is None else dict(vars(self.layer))
        if isinstance(self.layer, StaticLayer) and COUNT in self.state:
            self.state[COUNT] = self.state[COUNT] * 1  # copies a tensor

    def restore(self) -> None:
        """Restore the state of the layer."""
        if self.layer is None:
            del self.cache.layers[self.number :]
            return
        vars(self.layer).clear()
        vars(self.layer).update(self.state)
