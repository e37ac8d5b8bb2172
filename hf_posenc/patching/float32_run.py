"""Run a layer of a half-precision model in float32: half precision rounds away what a scheme does to weak scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from hf_posenc.core.half_precision import HALF
from hf_posenc.patches.engine_backend import ENGINE_BACKENDS

PLAIN = (*HALF, torch.float32, torch.float64, torch.bool)
"""What attention modules hold that are not quantised: weights, and masks."""


class InFloat32(TorchFunctionMode):
    """Every operation of the block reads half-precision tensors as float32; parameters stay as they are."""

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        stand_in = next((kind for kind in types if not issubclass(kind, Tensor)), None)
        if stand_in is not None:  # scores that are left pending: what they call runs in float32, too
            with InFloat32():
                return stand_in.__torch_function__(function, types, args, kwargs)
        if getattr(function, "__name__", "") == "__set__":  # of a tensor's data: what is kept stays as it is
            return function(*args)
        return function(*tree_map(widened, args), **tree_map(widened, kwargs or {}))


def widened(x: Any) -> Any:
    """A tensor of half precision in float32; anything else as it is."""
    return x.float() if isinstance(x, Tensor) and x.dtype in HALF else x


def runs_in_float32(attentions: Sequence[nn.Module], backend: str | None) -> bool:
    """Whether attention modules can be run in float32; kernels of half precision and quantised weights cannot be."""
    held = (tensor for attention in attentions for tensor in (*attention.parameters(), *attention.buffers()))
    plain = all(type(tensor) in (nn.Parameter, Tensor) and tensor.dtype in PLAIN for tensor in held)
    return plain and (backend or "eager") in ENGINE_BACKENDS


def in_float32(wanted: bool) -> AbstractContextManager[Any]:
    """`InFloat32`, or nothing where that is not wanted."""
    return InFloat32() if wanted else nullcontext()
