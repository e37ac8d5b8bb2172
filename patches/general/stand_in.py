"""A stand-in for a model, from its class and configuration alone: every kind of its layers once, with random weights.

Where a model keeps position does not depend on its weights. So nothing is asked of the loaded model, which may be in
use, quantised, offloaded, in half precision or not loaded yet. Weights are views of short random vectors: a matrix of
any size takes as many numbers as it has rows and columns.

Such a Hankel matrix has strides of one and repeats one vector along its antidiagonals, ``W[i, j] = n[i + j]``. Its
product is a correlation, ``y[j] = Σ_i x[i] n[i + j]``, which the fast Fourier transform computes in O(n log n) to the
rounding of a dense product. That would first copy the matrix, which takes minutes for the experts of a large model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hf_posenc.core.torch_state import float32_by_default
from hf_posenc.errors import UnsupportedModel

FACTORIES = (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn)
LARGE = 1 << 24  # numbers; no buffer has more
SCALARS = (bool, int, float, str, type(None))
LARGE_MATRIX = 1 << 18  # elements of a matrix; smaller ones are multiplied as they are
OWN_NUMBER = ("layer_idx", "layer_id", "layer_number")  # attributes that say which layer a module belongs to
aten = torch.ops.aten


@dataclass(frozen=True)
class StandIn:
    """A stand-in and the layers it stands for.

    Attributes:
        model: with the first layers of the real one, up to the last that is the first of its kind.
        layers: name of its list of layers; None where there is none, or all of them are there.
        kinds: for every layer of the real model, the number of the layer in ``model`` that is of its kind.
    """

    model: Any
    layers: str | None
    kinds: tuple[int, ...]


def stand_in(cls: type[nn.Module], config: Any, interface: str) -> StandIn:
    """A stand-in of a base model, in float32 on the CPU, whose attention calls the function named ``interface``."""
    try:
        model = weightless(cls, config, interface)
    except KeyError as error:
        if error.args != (interface,):
            raise
        raise UnsupportedModel(
            f"A {cls.__name__} chooses its attention class from its own list, not from the "
            "AttentionInterface of transformers. Write an adapter for it (see docs/add-model.md)."
        ) from error
    name = layers_of(model)
    kinds = () if name is None else kinds_of(model.get_submodule(name))
    if kinds:
        parent, _, own = name.rpartition(".")
        every = model.get_submodule(name)
        setattr(model.get_submodule(parent), own, every[: max(kinds) + 1])
    fill(model)
    return StandIn(model.eval(), name, kinds)


def weightless(cls: type[nn.Module], config: Any, interface: str) -> Any:
    """A model with its parameters on the meta device, whose attention calls the function named ``interface``."""
    config = copy.deepcopy(config)
    config._attn_implementation_internal = interface
    with without_weights(), float32_by_default():
        model: Any = cls(config)
    for module in model.modules():
        if getattr(module, "config", None) is not None and hasattr(module.config, "_attn_implementation_internal"):
            module.config._attn_implementation_internal = interface
            module.config._experts_implementation_internal = "eager"  # fused kernels take contiguous weights only
    return model


@contextmanager
def without_weights() -> Iterator[None]:
    """Make modules on the CPU with buffers and without weights: parameters are on the meta device."""
    with torch.device("cpu"), LargeOnMeta(), init_empty_weights(include_buffers=False):
        yield


class LargeOnMeta(TorchFunctionMode):
    """Makes large tensors on the meta device: accelerate takes weights away after they were allocated."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As of `TorchFunctionMode`."""
        kwargs = kwargs or {}
        if func in FACTORIES:
            empty = func(*args, **{**kwargs, "device": "meta"})
            if empty.numel() > LARGE:
                return empty
        return func(*args, **kwargs)


def layers_of(model: nn.Module) -> str | None:
    """Name of the longest list of modules within a model; None where there is none, or one for each part of a layer."""
    lists = {name: len(module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    longest = max(lists, key=lambda name: (lists[name], -len(name)), default=None)
    beside = [name for name in lists if longest is not None and _parent(name) == _parent(longest)]
    return longest if sum(lists[name] == lists[longest] for name in beside) == 1 else None


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def kinds_of(layers: nn.ModuleList) -> tuple[int, ...]:
    """For each layer the number of the first that has the same modules with the same settings."""
    first: dict[Any, int] = {}
    counters = counters_of(layers)
    return tuple(first.setdefault(settings_of(layer, counters), number) for number, layer in enumerate(layers))


def counters_of(layers: nn.ModuleList) -> set[str]:
    """Attributes of three layers or more, not of modules in them, that grow by one step from each to the next."""
    found = set()
    for name in vars(layers[0]) if len(layers) > 2 else ():
        values = [vars(layer).get(name) for layer in layers]
        steps = {two - one for one, two in pairwise(values)} if all(type(one) is int for one in values) else {0}
        if len(steps) == 1 and steps != {0}:
            found.add(name)
    return found


def settings_of(layer: nn.Module, counters: set[str]) -> tuple[Any, ...]:
    """All that modules of a layer keep as plain values, but what says or counts its number."""
    return tuple(
        (
            name,
            type(module).__name__,
            tuple((weight.shape if weight is not None else None) for weight in module._parameters.values()),
            tuple(
                (key, value)
                for key, value in vars(module).items()
                if isinstance(value, SCALARS) and key not in OWN_NUMBER and (name or key not in counters)
            ),
        )
        for name, module in layer.named_modules()
    )


def fill(model: nn.Module) -> None:
    """Random weights for parameters on the meta device: matrices that map to numbers of the size they were given."""
    draw = torch.Generator().manual_seed(0)
    made: dict[int, nn.Parameter] = {}  # tied weights stay tied
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and weight.is_meta:
                if id(weight) not in made:
                    made[id(weight)] = nn.Parameter(random_like(weight, draw), requires_grad=False)
                module._parameters[name] = made[id(weight)]


def random_like(weight: Tensor, draw: torch.Generator) -> Tensor:
    """Random numbers of a shape, as a view of as many as the sum of its sizes; vectors around one."""
    numbers = torch.randn(sum(weight.shape) + 1, generator=draw)
    if weight.ndim < 2:
        return 1 + 0.1 * numbers[: weight.numel()].view(weight.shape)
    steps = [1] * weight.ndim
    return (numbers * weight.shape[-1] ** -0.5).as_strided(weight.shape, steps)


class HankelProducts(TorchDispatchMode):
    """Inside the block, products with large Hankel matrices are correlations."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As of `TorchDispatchMode`."""
        if func is aten.mm.default or func is aten.bmm.default:
            one, two = args
            if is_hankel(two):
                return correlation(one, two)
            if is_hankel(one):
                return correlation(two.mT, one.mT).mT
        if (func is aten.addmm.default or func is aten.baddbmm.default) and not kwargs and is_hankel(args[2]):
            return args[0] + correlation(*args[1:])
        return func(*args, **(kwargs or {}))


def is_hankel(matrix: Tensor) -> bool:
    """Whether a matrix, or each of a batch, is a large one that repeats a vector along its antidiagonals."""
    rows, columns = matrix.shape[-2:]
    return matrix.stride()[-2:] == (1, 1) and rows * columns >= LARGE_MATRIX and matrix.dtype is torch.float32


def correlation(x: Tensor, matrix: Tensor) -> Tensor:
    """``x @ matrix`` of a Hankel matrix: ``[…, n, rows]`` by ``[…, rows, columns]`` to ``[…, n, columns]``."""
    rows, columns = matrix.shape[-2:]
    if x.numel() == 0:  # of which there is no transform
        return x.new_zeros(*x.shape[:-1], columns)
    size = rows + columns - 1
    repeated = matrix.as_strided((*matrix.shape[:-2], 1, size), (*matrix.stride()[:-2], 0, 1))
    length = 1 << (size - 1).bit_length()  # of the transform
    spectrum = torch.conj_physical(torch.fft.rfft(x, length)) * torch.fft.rfft(repeated, length)
    return torch.fft.irfft(spectrum, length)[..., :columns]
