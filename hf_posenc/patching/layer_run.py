"""Run a layer for the proof of effect: in float32, with its scores multiplied, at slightly moved positions.

Half precision rounds away small changes of weak scores. Quantised projections have their own kernels, which may read
half precision only, so they run in their own dtype.
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

SCORE_FACTORS = ("scaling", "inv_norm_factor", "softmax_scale")  # attributes with the factor of q · k, by class
UNQUANTISED_DTYPES = (*HALF, torch.float32, torch.float64, torch.bool)
"""Dtypes of the tensors in an attention module without quantisation: weights and masks."""


class InFloat32(TorchFunctionMode):
    """Every operation of the block reads half-precision tensors as float32; parameters stay as they are.

    Attributes:
        paused: while true, operations read tensors in their own dtype.
    """

    def __init__(self) -> None:
        super().__init__()
        self.paused = False

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.paused:
            return function(*args, **kwargs or {})
        stand_in = next((kind for kind in types if not issubclass(kind, Tensor)), None)
        if stand_in is not None:  # pending scores: the operations that they run later are in float32, too
            with InFloat32():
                return stand_in.__torch_function__(function, types, args, kwargs)
        if getattr(function, "__name__", "") == "__set__":  # sets a tensor's data, which keeps its dtype
            return function(*args)
        return function(*cast(args, HALF, torch.float32), **cast(kwargs or {}, HALF, torch.float32))


def quantised_modules(attention: nn.Module) -> list[nn.Module]:
    """Modules inside ``attention`` with quantised weights: integers, or tensors of a class of their own."""

    def is_quantised(tensor: Tensor) -> bool:
        return type(tensor) not in (nn.Parameter, Tensor) or tensor.dtype not in UNQUANTISED_DTYPES

    tensors = ((m, (*m.parameters(recurse=False), *m.buffers(recurse=False))) for m in attention.modules())
    return [module for module, own in tensors if any(map(is_quantised, own))]


def runs_in_float32(attentions: Sequence[nn.Module], backend: str | None) -> bool:
    """Whether attention modules can run in float32, apart from their quantised projections.

    A module that holds quantised weights itself cannot, nor can kernels that read half precision only.
    """
    holds_quantised = any(attention in quantised_modules(attention) for attention in attentions)
    return not holds_quantised and (backend or "eager") in ENGINE_BACKENDS


@contextmanager
def in_float32(attention: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Run an attention module in float32, and its quantised projections in ``dtype``."""
    mode, projections = InFloat32(), quantised_modules(attention)

    def pause(module: nn.Module, args: Any, kwargs: Any) -> Any:
        mode.paused = True
        return cast((args, kwargs), (torch.float32,), dtype)

    def resume(module: nn.Module, args: Any, output: Any) -> None:
        mode.paused = False

    hooks = [module.register_forward_pre_hook(pause, with_kwargs=True) for module in projections]
    hooks += [module.register_forward_hook(resume, always_call=True) for module in projections]
    try:
        with mode:
            yield
    finally:
        for hook in hooks:
            hook.remove()


def cast(value: Any, dtypes: tuple[torch.dtype, ...], to: torch.dtype) -> Any:
    """Convert the tensors of ``dtypes`` in ``value``, a tensor or any container that torch knows, to dtype ``to``."""
    return tree_map(lambda leaf: leaf.to(to) if isinstance(leaf, Tensor) and leaf.dtype in dtypes else leaf, value)


def relative_change(out: Tensor, before: Tensor) -> Tensor:
    """Largest change of each token's outputs, ``[token]``, relative to the largest output of all tokens."""
    return (out - before).abs().amax(-1) / before.abs().max().clamp(min=1e-12)


def perturb_positions(positions: Tensor, generator: torch.Generator) -> Tensor:
    """``positions [1, token]``, each moved up or down, at random, by one unit in the last place of float32."""
    signs = torch.randint(0, 2, positions.shape, generator=generator).to(positions.device) * 2 - 1
    return positions.float() * (1 + signs * torch.finfo(torch.float32).eps)


def factor_name(attention: nn.Module) -> str | None:
    """Name of the attribute that holds the factor of q · k, or None if the module's forward computes the factor."""
    return next((name for name in SCORE_FACTORS if getattr(attention, name, None) is not None), None)


@contextmanager
def scaled_scores(attention: nn.Module, name: str | None, factor: float) -> Iterator[None]:
    """Run the block with the module's scores times ``factor``. ``name`` is the attribute to multiply, or None."""
    if name is None:
        yield
        return
    scaling: Any = getattr(attention, name)
    setattr(attention, name, scaling * factor)
    try:
        yield
    finally:
        setattr(attention, name, scaling)
