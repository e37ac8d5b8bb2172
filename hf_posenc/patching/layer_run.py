"""Ways to run a layer for the proof of effect: in float32, with its scores multiplied, at positions beside its own.

Half precision rounds away what a scheme does to weak scores. Quantised projections have kernels of their own, which may
read half precision only: they are run as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from hf_posenc.core.constants import HALF
from hf_posenc.forward.engine_backend import ENGINE_BACKENDS

SCORE_FACTORS = ("scaling", "inv_norm_factor", "softmax_scale")  # what attention classes call the factor of q · k
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


def cast(value: Any, of: tuple[torch.dtype, ...], to: torch.dtype) -> Any:
    """The tensors of dtypes ``of`` in ``value`` as ``to``, in all containers that torch knows."""
    return tree_map(lambda one: one.to(to) if isinstance(one, Tensor) and one.dtype in of else one, value)


def relative_change(out: Tensor, before: Tensor) -> Tensor:
    """Largest change of each token ``[token]``, relative to the largest output of all."""
    return (out - before).abs().amax(-1) / before.abs().max().clamp(min=1e-12)


def perturb_positions(positions: Tensor, generator: torch.Generator) -> Tensor:
    """``positions [1, token]``, each a unit in the last place of float32 to either side, in any order."""
    signs = torch.randint(0, 2, positions.shape, generator=generator).to(positions.device) * 2 - 1
    return positions.float() * (1 + signs * torch.finfo(torch.float32).eps)


def factor_name(attention: nn.Module) -> str | None:
    """The attribute of an unpatched module that is the factor of q · k; None where its forward computes the factor."""
    return next((name for name in SCORE_FACTORS if getattr(attention, name, None) is not None), None)


@contextmanager
def scaled_scores(attention: nn.Module, name: str | None, factor: float) -> Iterator[None]:
    """Run the block with the module's scores multiplied by ``factor``, where ``name`` is the attribute to multiply."""
    if name is None:
        yield
        return
    scaling: Any = getattr(attention, name)
    setattr(attention, name, scaling * factor)
    try:
        yield
    finally:
        setattr(attention, name, scaling)
