"""Run a layer of a half-precision model in float32: half precision rounds away what a scheme does to weak scores.

Quantised projections have kernels of their own, which may read half precision only: they are run as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from hf_posenc.core.constants import HALF
from hf_posenc.core.torch_state import remove_hooks
from hf_posenc.forward.engine_backend import ENGINE_BACKENDS
from hf_posenc.patching.state import is_patched

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
        return function(*cast(args, HALF, torch.float32), **cast(kwargs or {}, HALF, torch.float32))


def packed(attention: nn.Module) -> list[nn.Module]:
    """Modules of an attention that hold quantised weights: integers, or tensors of a class of their own."""
    held = ((one, (*one.parameters(recurse=False), *one.buffers(recurse=False))) for one in attention.modules())
    return [module for module, tensors in held if not all(map(is_plain, tensors))]


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
        return cast((args, kwargs), (torch.float32,), dtype)

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


MARK = "float32_copy"  # of a layer: the dtype it had


def keep_in_float32(model: nn.Module) -> list[nn.Module]:
    """Convert the adapters' module copies and the learned positions of a PEFT model.

    Returns:
        The layers that had to be converted; a second call converts none.
    """
    halves = [
        (layer, dtype)
        for module, dtype in (*module_copies(model), *learned_positions(model))
        for layer in module.modules()
        if any(weight.dtype in HALF for weight in layer.parameters(recurse=False))
    ]
    for layer, dtype in halves:
        convert(layer, dtype)
    return [layer for layer, _ in halves]


def restore_dtype(layers: Iterable[nn.Module]) -> None:
    """Give those of the layers that `keep_in_float32` has converted their dtype back."""
    for layer in layers:
        if MARK in layer.__dict__:
            dtype = layer.__dict__.pop(MARK)
            noted = layer._forward_pre_hooks_with_kwargs
            remove_hooks(layer._forward_pre_hooks, lambda hook: hook is to_float32, noted)
            remove_hooks(layer._forward_hooks, lambda hook: isinstance(hook, Rounding))
            for weight in layer.parameters(recurse=False):
                weight.data = weight.data.to(dtype)


def module_copies(model: nn.Module) -> Iterator[tuple[nn.Module, torch.dtype]]:
    """The copies that PEFT trains in place of whole modules, with the dtype of the original."""
    from peft.utils import ModulesToSaveWrapper

    for wrapper in model.modules():
        if isinstance(wrapper, ModulesToSaveWrapper):
            dtype = next((p.dtype for p in wrapper.original_module.parameters() if p.is_floating_point()), None)
            if dtype in HALF:
                yield from ((copy, dtype) for copy in wrapper.modules_to_save.values())


def learned_positions(model: nn.Module) -> Iterator[tuple[nn.Module, torch.dtype]]:
    """The modules of schemes that PEFT has not copied, with their dtype."""
    if not is_patched(model):
        return
    for owner in model.modules():
        scheme = owner._modules.get("posenc")
        weight = None if scheme is None else next(iter(scheme.parameters()), None)
        if scheme is not None and weight is not None and weight.dtype in HALF:
            yield scheme, weight.dtype


def convert(layer: nn.Module, dtype: torch.dtype) -> None:
    """Make the weights of one layer float32, and its calls take and return ``dtype`` still."""
    for weight in layer.parameters(recurse=False):
        if weight.dtype in HALF:
            weight.data = weight.data.float()
    layer.register_forward_pre_hook(to_float32, with_kwargs=True)
    layer.register_forward_hook(Rounding(dtype))
    layer.__dict__[MARK] = dtype


def to_float32(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Forward pre-hook: inputs in half precision become float32."""
    return cast(args, HALF, torch.float32), cast(kwargs, HALF, torch.float32)


class Rounding:
    """Forward hook: outputs in float32 become those of another dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """After the layer's forward."""
        return cast(output, (torch.float32, *HALF), self.dtype)


def cast(value: Any, of: tuple[torch.dtype, ...], to: torch.dtype) -> Any:
    """The tensors of dtypes ``of`` in ``value`` as ``to``, in all containers that torch knows."""
    return tree_map(lambda one: one.to(to) if isinstance(one, Tensor) and one.dtype in of else one, value)
