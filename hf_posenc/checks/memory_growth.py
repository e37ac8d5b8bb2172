"""Check of memory: it grows with the length of a text, not with its square.

A spy on torch's dispatcher sees every tensor an operation makes. What fused kernels use inside is not seen; they are
written to use little.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from hf_posenc.checks.case import Case, position_limit
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.registry import register_check
from hf_posenc.patching.state import base_model_of

SHORT, LONG = 400, 800  # more than a block of rows; their like is not found among the sizes of models
DOUBLED = 2.1


@register_check("memory", costly=True)
def memory_is_linear(pair: Case) -> Deviation:
    """Twice the text takes twice the memory, and no tensor has two axes as long as the text.

    The value is the number of tensors that do, and one more where the peak grew by more than `DOUBLED`.
    """
    with pair.patched() as model:
        end = position_limit(model)
        if end is not None and end < LONG:
            return pair.gap("memory", 0.0, f"no tensor: the scheme ends at {end} tokens")
        before = model.config._attn_implementation
        try:
            model.set_attn_implementation("sdpa")  # the reference forms all pairs
            short, long = spied(model, SHORT), spied(model, LONG)
        finally:
            model.set_attn_implementation(before)
    growth = long.peak / max(short.peak, 1)
    where = f"peak times {growth:.2f}" + (f", {', '.join(sorted(long.square)[:3])}" if long.square else "")
    return pair.gap("memory", float(len(long.square) + (growth > DOUBLED)), where)


def spied(model: PreTrainedModel, length: int) -> Spy:
    """What the base model makes in reading a text of that length."""
    base, tokens = base_model_of(model)[0], random_tokens(model, length)
    with torch.no_grad(), Spy(length, sizes_of(base)) as spy:
        base(input_ids=tokens, use_cache=False)
    return spy


def sizes_of(model: nn.Module) -> set[int]:
    """The model's own sizes: an axis of one of them is not the text's."""
    return {size for weight in model.parameters() for size in weight.shape}


class Spy(TorchDispatchMode):
    """Watches the tensors that operations make.

    Args:
        length: of the text.
        own: sizes that are the model's.

    Attributes:
        peak: the most bytes of new tensors alive at one time.
        square: operations whose result had two axes of the text's length or more, and its shape.
    """

    def __init__(self, length: int, own: set[int]) -> None:
        super().__init__()
        self.length, self.own = length, own
        self.peak = self.alive = 0
        self.square: set[str] = set()
        self.holders: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Run an operation, and look at what it made."""
        out = func(*args, **(kwargs or {}))
        for made in tree_leaves(out):
            if isinstance(made, Tensor):
                self._look(made, func)
        return out

    def _look(self, made: Tensor, func: Any) -> None:
        storage = made.untyped_storage()
        key, size = storage.data_ptr(), storage.nbytes()
        axes = [n for n in made.shape if n >= self.length and n not in self.own]
        if len(axes) > 1 and size >= math.prod(axes) * made.element_size():  # a view may show one number many times
            self.square.add(f"{func.overloadpacket.__name__} {list(made.shape)}")
        if self.holders.get(key, 0) == 0:
            self.alive += size
        self.holders[key] = self.holders.get(key, 0) + 1
        weakref.finalize(made, self._let_go, key, size)
        self.peak = max(self.peak, self.alive)

    def _let_go(self, key: int, size: int) -> None:
        self.holders[key] -= 1
        if self.holders[key] == 0:
            self.alive -= size
