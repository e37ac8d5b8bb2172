"""Keep learned positions and PEFT's copies of whole modules in float32 while a half-precision model is trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from hf_posenc.core.constants import HALF
from hf_posenc.core.torch_state import remove_hooks
from hf_posenc.patching.layer_run import cast
from hf_posenc.patching.state import is_patched

MARK = "float32_copy"  # attribute of a converted layer: its dtype before


def keep_in_float32(model: nn.Module) -> list[nn.Module]:
    """Convert the adapters' module copies and the learned positions of a PEFT model to float32.

    Returns:
        The converted layers. A second call converts none.
    """
    halves = [
        (layer, dtype)
        for module, dtype in (*module_copies(model), *learned_positions(model))
        for layer in module.modules()
        if any(weight.dtype in HALF for weight in layer.parameters(recurse=False))
    ]
    for layer, dtype in halves:
        convert_to_float32(layer, dtype)
    return [layer for layer, _ in halves]


def restore_dtype(layers: Iterable[nn.Module]) -> None:
    """Convert ``layers`` back to their old dtype. Layers that `keep_in_float32` has not converted stay unchanged."""
    for layer in layers:
        if MARK in layer.__dict__:
            dtype = layer.__dict__.pop(MARK)
            remove_hooks(layer._forward_pre_hooks, to_float32, layer._forward_pre_hooks_with_kwargs)
            remove_hooks(layer._forward_hooks, to_dtype)
            for weight in layer.parameters(recurse=False):
                weight.data = weight.data.to(dtype)


def module_copies(model: nn.Module) -> Iterator[tuple[nn.Module, torch.dtype]]:
    """Copies that PEFT trains in place of whole half-precision modules, with the dtype of the original."""
    from peft.utils import ModulesToSaveWrapper

    for wrapper in model.modules():
        if isinstance(wrapper, ModulesToSaveWrapper):
            dtype = next((p.dtype for p in wrapper.original_module.parameters() if p.is_floating_point()), None)
            if dtype in HALF:
                yield from ((copy, dtype) for copy in wrapper.modules_to_save.values())


def learned_positions(model: nn.Module) -> Iterator[tuple[nn.Module, torch.dtype]]:
    """Half-precision scheme modules, or PEFT's wrappers of them, with their dtype."""
    if not is_patched(model):
        return
    for owner in model.modules():
        scheme = owner._modules.get("posenc")
        weight = None if scheme is None else next(iter(scheme.parameters()), None)
        if scheme is not None and weight is not None and weight.dtype in HALF:
            yield scheme, weight.dtype


def convert_to_float32(layer: nn.Module, dtype: torch.dtype) -> None:
    """Convert the weights of one layer to float32. Its forward still takes and returns ``dtype``."""
    for weight in layer.parameters(recurse=False):
        if weight.dtype in HALF:
            weight.data = weight.data.float()
    layer.register_forward_pre_hook(to_float32, with_kwargs=True)
    layer.register_forward_hook(partial(to_dtype, dtype=dtype))
    layer.__dict__[MARK] = dtype


def to_float32(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Forward pre-hook: convert half-precision inputs to float32."""
    return cast(args, HALF, torch.float32), cast(kwargs, HALF, torch.float32)


def to_dtype(layer: nn.Module, args: tuple[Any, ...], output: Any, *, dtype: torch.dtype) -> Any:
    """Forward hook: convert floating-point outputs to ``dtype``."""
    return cast(output, (torch.float32, *HALF), dtype)
