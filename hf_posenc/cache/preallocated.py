"""KV cache with preallocated capacity: append new keys and values in place instead of concatenating.

transformers' growing cache concatenates, which copies every key and value at every step. This takes most of the time
when a CPU decodes a long text. Here capacity for a few hundred tokens is allocated at a time. Returned tensors are
never overwritten: a layer writes only after the last token ever written to its buffer, and copies otherwise.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import DynamicLayer

from hf_posenc.core.tracing import is_traced

CAPACITY_STEP = 256  # tokens; one copy in 256 steps costs little next to reading the keys


class Buffer:
    """Preallocated memory for a tensor ``[batch, heads, token, dim]`` that grows along its tokens."""

    def __init__(self) -> None:
        self.memory: Tensor | None = None
        self.written = 0

    def append(self, old: Tensor, new: Tensor) -> Tensor:
        """Return ``old`` followed by ``new``, a view of this memory."""
        memory, count = self.memory, old.shape[-2] if old.numel() > 0 else 0
        end = count + new.shape[-2]
        # Write in place only if ``old`` is all that was ever written here: then no other view reaches beyond it.
        in_place = (
            memory is not None
            and end <= memory.shape[-2]
            and (torch.is_inference_mode_enabled() or not memory.is_inference())
            and old.data_ptr() == memory.data_ptr()
            and count == self.written
            and old.shape[:2] == memory.shape[:2]
        )
        if memory is None or not in_place:
            capacity = CAPACITY_STEP if count else 0  # a prefill without decoding needs no more
            memory = new.new_empty(*new.shape[:2], end + capacity, new.shape[-1])
            if count:
                memory[..., :count, :] = old
        memory.narrow(-2, count, new.shape[-2]).copy_(new)
        self.memory, self.written = memory, end
        return memory.narrow(-2, 0, end)


class PreallocatedLayer(DynamicLayer):
    """transformers' growing layer with preallocated buffers.

    The buffers are not attributes, which would be inputs of exported graphs. A copy of a layer gets new buffers.
    """

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Cache the new keys and values, and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if torch.is_grad_enabled() or is_traced():  # autograd and traces need new tensors
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
