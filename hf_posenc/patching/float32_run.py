"""Run a layer of a half-precision model in float32: half precision rounds away what a scheme does to weak scores.

Quantised projections have kernels of their own, which may read half precision only: they are run as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from hf_posenc.core.half_precision import HALF
from hf_posenc.forward.engine_backend import ENGINE_BACKENDS

PLAIN = (*HALF, torch.float32, torch.float64, torch.bool)
"""What attention modules hold that are not quantised: weights, and masks."""


class InFloat32(TorchFunctionMode):
    """Every operation of the block reads half-precision tensors as float32; parameters stay as they are.

    Attributes:
        paused: while true, operations read tensors as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.paused = False

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.paused:
            return function(*args, **kwargs or {})
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


def packed(attention: nn.Module) -> list[nn.Module]:
    """Modules of an attention that hold quantised weights: integers, or tensors of a class of their own."""
    return [module for module in attention.modules() if any(not is_plain(tensor) for tensor in held(module))]


def held(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers of a module's own."""
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def is_plain(tensor: Tensor) -> bool:
    """Whether it holds floating-point numbers, or a mask."""
    return type(tensor) in (nn.Parameter, Tensor) and tensor.dtype in PLAIN


def runs_in_float32(attentions: Sequence[nn.Module], backend: str | None) -> bool:
    """Whether attention modules can be run in float32, but for their quantised projections.

    Attention that multiplies quantised weights itself, and kernels of half precision alone, cannot be.
    """
    itself = any(attention in packed(attention) for attention in attentions)
    return not itself and (backend or "eager") in ENGINE_BACKENDS


@contextmanager
def in_float32(attention: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Run an attention module in float32, and its quantised projections in ``dtype``."""
    mode, projections = InFloat32(), packed(attention)

    def as_it_is(module: nn.Module, args: Any, kwargs: Any) -> Any:
        mode.paused = True
        return tree_map(lambda x: narrowed(x, dtype), (args, kwargs))

    def go_on(module: nn.Module, args: Any, output: Any) -> None:
        mode.paused = False

    hooks = [module.register_forward_pre_hook(as_it_is, with_kwargs=True) for module in projections]
    hooks += [module.register_forward_hook(go_on, always_call=True) for module in projections]
    try:
        with mode:
            yield
    finally:
        for hook in hooks:
            hook.remove()


def narrowed(x: Any, dtype: torch.dtype) -> Any:
    """A tensor of float32 in ``dtype``; anything else as it is."""
    return x.to(dtype) if isinstance(x, Tensor) and x.dtype == torch.float32 else x
