"""Handle the hooks that accelerate puts on models spread over devices, or offloaded to memory or disk.

A hooked module has its hook in ``_hf_hook`` and a ``forward`` on the instance. This moves inputs and weights to one
device and calls ``_old_forward``, the class's own forward bound to the instance. If a hook offloads, the weights are on
the meta device between calls, and the hook's ``weights_map`` holds their values. Removing a hook leaves the bound
forward on the instance. None of this is a patch by another library. All of it must be updated when a module changes
its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.core.tested_versions import beyond_tested
from hf_posenc.errors import UnsupportedModel
from hf_posenc.forward.placement import OWN, offload_of

Offloads = Mapping[nn.Module, Any]  # modules whose weights are offloaded, and the hook that loads them


def offloads_of(model: nn.Module) -> Offloads:
    """All modules of a model with a hook of accelerate that offloads weights, and the hook.

    Warns:
        UntestedVersion: accelerate, whose hooks are read, is newer than this package is tested with.
    """
    offloads = {module: hook for module in model.modules() if (hook := offload_of(module)) is not None}
    if offloads:
        beyond_tested("accelerate")
    return offloads


def refuse_blocks(model: nn.Module, offloads: Offloads) -> None:
    """Refuse blocks that load the weights of all their modules at once: their attention cannot run on its own."""
    if any(hook.place_submodules for hook in offloads.values()):
        raise UnsupportedModel(
            f"Blocks of this {type(model).__name__} load all their weights at once (preload_module_classes of "
            "accelerate), so no layer can be run alone. Patch the model first, and offload it afterwards."
        )


def offloaded_values(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of a model, with the values of offloaded weights."""
    offloads, weights = offloads_of(model), dict(model.state_dict())
    for prefix, module in model.named_modules():
        if (hook := offloads.get(module)) is not None:
            for name, weight in module.named_parameters(recurse=hook.place_submodules):
                if weight.is_meta:
                    weights[f"{prefix}.{name}" if prefix else name] = hook.weights_map[name].to(weight.dtype)
    return weights


def computing_device(module: nn.Module, offloads: Offloads, *, around: nn.Module | None = None) -> torch.device:
    """The device of a module's weights while it computes; the meta device if they have no values anywhere.

    Args:
        module: a part of a model.
        offloads: offloaded modules of the model.
        around: module around ``module``, asked if ``module`` holds no tensor. Quantised layers have no parameters:
            their packed weights are buffers (GPTQ, AWQ), or hidden from torch (``torch.ao``).
    """
    for kind in (nn.Module.parameters, nn.Module.buffers):
        weights = [(part, weight) for part in module.modules() for weight in kind(part, recurse=False)]
        for part, weight in weights:
            if part in offloads and offloads[part].execution_device is not None:
                return torch.device(offloads[part].execution_device)
            if not weight.is_meta:
                return weight.device
        if weights:
            return torch.device("meta")
    return torch.device("meta") if around is None else computing_device(around, offloads)


def offload_beside(child: nn.Module, neighbour: nn.Module, offloads: Offloads) -> None:
    """Offload a new module, each of its parts on its own, if the weights of ``neighbour`` are offloaded."""
    hook = next((offloads[part] for part in neighbour.modules() if part in offloads), None)
    if hook is not None:
        from accelerate.hooks import attach_align_device_hook

        attach_align_device_hook(child, hook.execution_device, offload=True, offload_buffers=hook.offload_buffers)


def has_foreign_forward(module: nn.Module) -> bool:
    """Whether a module has a forward on the instance other than its class's own or accelerate's wrapper of it."""
    forward = module.__dict__.get("forward")
    if isinstance(forward, partial) and getattr(forward.func, "__module__", "") == "accelerate.hooks":
        return not is_own(module, module.__dict__.get("_old_forward"))
    return forward is not None and not is_own(module, forward)


def is_own(module: nn.Module, forward: Any) -> bool:
    """Whether ``forward`` is the forward of a module's class, bound to the module."""
    return isinstance(forward, MethodType) and forward.__self__ is module and forward.__func__ is type(module).forward


def change_class(module: nn.Module, cls: type[nn.Module]) -> None:
    """Change the class of a module. A bound forward that accelerate keeps on the instance becomes that of ``cls``."""
    bound = [name for name in OWN if is_own(module, module.__dict__.get(name))]
    module.__class__ = cls
    for name in bound:
        module.__dict__[name] = MethodType(cls.forward, module)
