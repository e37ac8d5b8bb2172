"""Checks of memory: it grows linearly with the sequence length, and a forward pass leaks no objects.

A `TorchDispatchMode` sees every tensor that an operation returns; buffers inside fused kernels are not seen.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Sequence
from itertools import pairwise
from statistics import median_low
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from hf_posenc.checks.case import Case, position_limit
from hf_posenc.checks.forward import attention_backend, earlier_objects_set_aside, forward, random_tokens
from hf_posenc.checks.registry import Measured, register_check
from hf_posenc.patching.state import base_model_of

SHORT, LONG = 400, 800  # tokens: longer than a block of queries, and no size of a model
MAX_GROWTH = 2.1


@register_check("memory_growth", needs=("supports_sdpa",), slow=True)
def memory_is_linear(case: Case) -> Measured:
    """Twice the sequence length takes at most 2.1 times the memory, and no tensor has two axes of that length.

    The value is the number of such tensors, plus one if the peak grew by more.
    """
    with case.patched() as model:
        end = position_limit(model)
        if end is not None and end < LONG:
            return 0.0, f"no tensor: the scheme has {end} positions"
        with attention_backend(model, "sdpa"):  # eager attention is quadratic by design
            short, long = record_allocations(model, SHORT), record_allocations(model, LONG)
    growth = long.peak / max(short.peak, 1)
    where = f"peak memory times {growth:.2f}" + (f", {', '.join(sorted(long.square)[:3])}" if long.square else "")
    return float(len(long.square) + (growth > MAX_GROWTH)), where


def record_allocations(model: PreTrainedModel, length: int) -> AllocationRecorder:
    """Record the tensors of a forward pass of the base model on a text of that length."""
    base, tokens = base_model_of(model)[0], random_tokens(model, length)
    model_sizes = {size for weight in base.parameters() for size in weight.shape}
    with torch.no_grad(), AllocationRecorder(length, model_sizes) as recorder:
        base(input_ids=tokens, use_cache=False)
    return recorder


class AllocationRecorder(TorchDispatchMode):
    """Records the tensors that torch operations return.

    Args:
        length: sequence length.
        model_sizes: axis sizes of the model's parameters, which do not count as sequence lengths.

    Attributes:
        peak: largest number of bytes of new tensors alive at one time.
        square: operations that returned a tensor with two axes of the sequence length or more, with its shape.
    """

    def __init__(self, length: int, model_sizes: set[int]) -> None:
        super().__init__()
        self.length, self.model_sizes = length, model_sizes
        self.peak = self.alive = 0
        self.square: set[str] = set()
        self.references: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Run an operation and record the tensors it returns."""
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._record(tensor, func)
        return out

    def _record(self, tensor: Tensor, func: Any) -> None:
        storage = tensor.untyped_storage()
        key, size = storage.data_ptr(), storage.nbytes()
        axes = [n for n in tensor.shape if n >= self.length and n not in self.model_sizes]
        if len(axes) > 1 and size >= math.prod(axes) * tensor.element_size():  # an expanded view does not count
            self.square.add(f"{func.overloadpacket.__name__} {list(tensor.shape)}")
        if self.references.get(key, 0) == 0:
            self.alive += size
        self.references[key] = self.references.get(key, 0) + 1
        weakref.finalize(tensor, self._release, key, size)
        self.peak = max(self.peak, self.alive)

    def _release(self, key: int, size: int) -> None:
        self.references[key] -= 1
        if self.references[key] == 0:
            self.alive -= size


WARM_UP, ROUNDS = 2, 5  # forward passes; the first ones build tables
ATTEMPTS = 3  # a leak grows in every attempt; objects of other threads do not


@register_check("memory_leaks", slow=True)
def forward_leaks_no_objects(case: Case) -> Measured:
    """The number of live objects does not grow from one forward pass to the next.

    The value is the median growth over five passes, in up to three attempts: objects of other threads do not count.
    """
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(case.trained_length + 1, model))
        for _ in range(WARM_UP):
            forward(model, tokens)
        with earlier_objects_set_aside():
            for _ in range(ATTEMPTS):
                if (leaked := leaked_objects(model, tokens)) <= 0:
                    break
    return float(max(0, leaked)), f"objects kept by each forward pass: {leaked}"


def leaked_objects(model: Any, tokens: Tensor) -> int:
    """Median number of objects that stay alive after a forward pass."""
    counts = [count_objects()]
    for _ in range(ROUNDS):
        forward(model, tokens)
        counts.append(count_objects())
    return median_low(after - before for before, after in pairwise(counts))


def count_objects() -> int:
    """Number of objects that Python's garbage collector tracks, without frozen ones."""
    gc.collect()
    return len(gc.get_objects())
