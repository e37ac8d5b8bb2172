"""Keep what an adapter trains in float32 on a base in half precision.

A weight near 1 in bfloat16 has neighbours 2⁻⁷ away, so that a step of 2e-4 rounds to nothing (Micikevicius et al. 2017,
"Mixed Precision Training", arXiv:1710.03740, section 3.1). PEFT keeps LoRA's matrices in float32 for that reason, and
copies of whole modules (``modules_to_save``) in the dtype of the base. Here these copies and learned positions become
float32 as well. Each layer of a copy computes in float32 and returns the dtype of the base, inside ``autocast`` and
outside, so that the rest of the model computes as it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.core.half_precision import HALF
from hf_posenc.patching.state import is_patched

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
            remove_hooks(layer)
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


def remove_hooks(layer: nn.Module) -> None:
    """Remove what `convert` has registered, by what it is: the handles of a copied layer are those of the original."""
    for number, before in list(layer._forward_pre_hooks.items()):
        if before is to_float32:
            layer._forward_pre_hooks.pop(number)
            layer._forward_pre_hooks_with_kwargs.pop(number, None)
    for number, after in list(layer._forward_hooks.items()):
        if isinstance(after, Rounding):
            layer._forward_hooks.pop(number)


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
    """The tensors of dtypes ``of`` in ``value`` as ``to``; lists, tuples and mappings are searched."""
    if isinstance(value, Tensor):
        return value.to(to) if value.dtype in of else value
    if isinstance(value, Mapping):
        return {key: cast(inner, of, to) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(cast(inner, of, to) for inner in value)
    return value
