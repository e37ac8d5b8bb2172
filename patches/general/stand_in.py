"""Build a stand-in of a model from its class and configuration: one layer of each kind, with random weights.

Where a model keeps position does not depend on its weights. So the loaded model is not touched: it may be in use,
quantised, offloaded, in half precision or not loaded yet. Weights are views of short random vectors: a matrix takes
only as much memory as the sum of its rows and columns.

Such a Hankel matrix has strides of one and repeats one vector along its antidiagonals, ``W[i, j] = n[i + j]``. Its
product is a correlation, ``y[j] = Σ_i x[i] n[i + j]``. The fast Fourier transform computes it in O(n log n), with the
rounding of a dense product. A dense product would first copy the matrix: minutes for the experts of a large model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hf_posenc.core.torch_state import float32_by_default
from hf_posenc.errors import UnsupportedModel

FACTORIES = (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn)
LARGE = 1 << 24  # elements; buffers are smaller
SCALARS = (bool, int, float, str, type(None))
LARGE_MATRIX = 1 << 18  # elements; smaller matrices are multiplied densely
OWN_NUMBER = ("layer_idx", "layer_id", "layer_number", "attn_residual_add_idx", "mlp_residual_add_idx")
"""Attributes that say which layer a module belongs to."""
aten = torch.ops.aten


@dataclass(frozen=True)
class StandIn:
    """A stand-in and the layers it represents.

    Attributes:
        model: the base model with its first layers, up to the last one that is of a new kind.
        layers: name of the list of layers; None if the model has no single list.
        kinds: for every layer of the real model, the number of the layer in ``model`` of the same kind.
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
        parent, _, attribute = name.rpartition(".")
        layers = model.get_submodule(name)
        setattr(model.get_submodule(parent), attribute, layers[: max(kinds) + 1])
    fill_with_random_weights(model)
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
    """Inside the block, new modules have their parameters on the meta device and their buffers on the CPU."""
    with torch.device("cpu"), LargeOnMeta(), init_empty_weights(include_buffers=False):
        yield


class LargeOnMeta(TorchFunctionMode):
    """Creates large tensors on the meta device: accelerate moves weights there only after allocating them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a factory on the meta device if its result is large; run every other function unchanged."""
        kwargs = kwargs or {}
        if func in FACTORIES:
            empty = func(*args, **{**kwargs, "device": "meta"})
            if empty.numel() > LARGE:
                return empty
        return func(*args, **kwargs)


def layers_of(model: nn.Module) -> str | None:
    """Name of the longest list of modules in a model; None without a list, or with a sibling list of equal length."""
    lists = {name: len(module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    longest = max(lists, key=lambda name: (lists[name], -len(name)), default=None)
    if longest is None:
        return None
    parent = longest.rpartition(".")[0]
    siblings = [name for name in lists if name.rpartition(".")[0] == parent]
    return longest if sum(lists[name] == lists[longest] for name in siblings) == 1 else None


def kinds_of(layers: nn.ModuleList) -> tuple[int, ...]:
    """For each layer, the number of the first layer with the same modules and the same settings."""
    first: dict[Any, int] = {}
    return tuple(first.setdefault(settings_of(layer), number) for number, layer in enumerate(layers))


def settings_of(layer: nn.Module) -> tuple[Any, ...]:
    """Plain attribute values and parameter shapes of a layer's modules, without layer numbers."""
    settings = []
    for name, module in layer.named_modules():
        shapes = tuple(None if weight is None else weight.shape for weight in module._parameters.values())
        plain = [(key, value) for key, value in vars(module).items() if isinstance(value, SCALARS)]
        values = tuple((key, value) for key, value in plain if key not in OWN_NUMBER)
        settings.append((name, type(module).__name__, shapes, values))
    return tuple(settings)


def fill_with_random_weights(model: nn.Module) -> None:
    """Replace parameters on the meta device by random ones; matrices preserve the scale of their input."""
    generator = torch.Generator().manual_seed(0)
    made: dict[int, nn.Parameter] = {}  # tied weights stay tied
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and weight.is_meta:
                if id(weight) not in made:
                    made[id(weight)] = nn.Parameter(random_like(weight, generator), requires_grad=False)
                module._parameters[name] = made[id(weight)]


def random_like(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Random weights of a shape: Hankel matrices as views of one vector, and vectors near one."""
    numbers = torch.randn(sum(weight.shape) + 1, generator=generator)
    if weight.ndim < 2:
        return 1 + 0.1 * numbers[: weight.numel()].view(weight.shape)
    steps = [1] * weight.ndim
    return (numbers * weight.shape[-1] ** -0.5).as_strided(weight.shape, steps)


class HankelProducts(TorchDispatchMode):
    """Inside the block, products with large Hankel matrices are computed as correlations."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute a matrix product by `correlation` if one factor is a large Hankel matrix."""
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
    """Whether a matrix, or each matrix of a batch, is large and constant along its antidiagonals."""
    rows, columns = matrix.shape[-2:]
    return matrix.stride()[-2:] == (1, 1) and rows * columns >= LARGE_MATRIX and matrix.dtype is torch.float32


def correlation(x: Tensor, matrix: Tensor) -> Tensor:
    """``x @ matrix`` of a Hankel matrix: ``[…, n, rows]`` by ``[…, rows, columns]`` to ``[…, n, columns]``."""
    rows, columns = matrix.shape[-2:]
    if x.numel() == 0:  # torch.fft refuses empty tensors
        return x.new_zeros(*x.shape[:-1], columns)
    size = rows + columns - 1
    repeated = matrix.as_strided((*matrix.shape[:-2], 1, size), (*matrix.stride()[:-2], 0, 1))
    length = 1 << (size - 1).bit_length()  # of the transform
    spectrum = torch.conj_physical(torch.fft.rfft(x, length)) * torch.fft.rfft(repeated, length)
    return torch.fft.irfft(spectrum, length)[..., :columns]
