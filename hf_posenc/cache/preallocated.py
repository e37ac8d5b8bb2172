"""KV cache with preallocated capacity: append new keys and values in place instead of concatenating.

transformers' growing cache concatenates, which copies every key and value at every step: most of the time of decoding
a long text on a CPU. Here capacity for a few hundred tokens is allocated at a time. What was returned is never
overwritten: a layer writes only behind the last token ever written to its buffer, else it copies as usual.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import Cache, DynamicLayer

from hf_posenc.core.tracing import is_traced

CAPACITY_STEP = 256  # tokens; one copy in 256 steps costs little next to reading the keys


class Buffer:
    """Memory for one tensor ``[batch, heads, token, dim]`` that grows along its tokens."""

    def __init__(self) -> None:
        self.memory: Tensor | None = None
        self.written = 0
        self.returned: Tensor | None = None

    def append(self, held: Tensor, new: Tensor) -> Tensor:
        """``held`` followed by ``new``, a view of this memory."""
        memory, known = self.memory, held is self.returned
        count = self.written if known else (0 if held.numel() == 0 else held.shape[-2])
        end = count + new.shape[-2]
        # What is held must be all that was ever written here: then nobody can be reading what comes behind it.
        goes_on = (
            memory is not None
            and end <= memory.shape[-2]
            and (torch.is_inference_mode_enabled() or not memory.is_inference())
            and held.data_ptr() == memory.data_ptr()
            and (known or (count == self.written and held.shape[:2] == memory.shape[:2]))
        )
        if memory is None or not goes_on:
            capacity = CAPACITY_STEP if count else 0  # a prefill without decoding takes no more than its own
            memory = new.new_empty(*new.shape[:2], end + capacity, new.shape[-1])
            if count:
                memory[..., :count, :] = held
        memory.narrow(-2, count, new.shape[-2]).copy_(new)
        self.memory, self.written, self.returned = memory, end, memory.narrow(-2, 0, end)
        return self.returned


class PreallocatedLayer(DynamicLayer):
    """transformers' own layer, in preallocated buffers.

    They are no attributes, as those become inputs of an exported graph. A copy of a layer begins with new ones.
    """

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Cache the new keys and values, and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if torch.is_grad_enabled() or is_traced():  # a gradient or a trace needs tensors of their own
            return super().update(key_states, value_states, *args, **kwargs)
        keys, values = BUFFERS.get(self) or BUFFERS.setdefault(self, (Buffer(), Buffer()))
        self.keys: Tensor = keys.append(self.keys, key_states)
        self.values: Tensor = values.append(self.values, value_states)
        return self.keys, self.values

    def reset(self) -> None:
        """Empty the layer."""
        BUFFERS.pop(self, None)
        super().reset()


BUFFERS: WeakKeyDictionary[PreallocatedLayer, tuple[Buffer, Buffer]] = WeakKeyDictionary()


def install_preallocation(cache: Cache, layers: int) -> None:
    """Install preallocated layers in an empty cache that is not offloaded."""
    if not cache.offloading and not is_traced():
        found = cache.layers or [DynamicLayer() for _ in range(layers)]
        cache.layers = [PreallocatedLayer() if type(layer) is DynamicLayer else layer for layer in found]
