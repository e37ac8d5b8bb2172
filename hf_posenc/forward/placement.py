"""Bring a scheme's parameters to the device of the layer that computes with them (offloading, several devices).

accelerate moves the parameters of a module when the module is *called*, but a scheme reads its parameters without being
called. Offloaded parameters are then on the meta device, which has shapes and no values. If all layers share a scheme,
layers on other devices need copies of its parameters. Such a layer computes with a copy of the scheme object. The copy
has the same options and submodules, and moves each parameter to the layer's device when it is first read. The model
itself does not change, gradients flow to the original parameters, and the copy lives as long as the call.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hf_posenc.errors import NoValues
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.memo import ORIGINAL

HOOK = "_hf_hook"
OWN = ("forward", "_old_forward")  # instance attributes that may hold a bound forward

M = TypeVar("M", bound=nn.Module)


def offload_of(module: nn.Module) -> Any:
    """accelerate's `AlignDevicesHook` that loads a module's offloaded weights; None if they are not offloaded."""
    hook = module.__dict__.get(HOOK)
    return next((one for one in getattr(hook, "hooks", (hook,)) if getattr(one, "offload", False)), None)


def scheme_on(scheme: Scheme, device: torch.device) -> Scheme:
    """The scheme with all its parameters on ``device``; the scheme itself if they are there already.

    Raises:
        NoValues: a parameter on the meta device is read, and no hook of accelerate knows its values.
    """
    first = first_with_parameters(scheme)
    if first is None:
        return scheme
    if HOOK in first.__dict__:  # accelerate may have split the scheme itself
        on_device = all(parameter.device == device for parameter in scheme.parameters())
    else:
        on_device = next(param.device for param in first._parameters.values() if param is not None) == device
    if on_device:
        return scheme
    return materialized_copy(scheme, device) if torch.compiler.is_compiling() else copy_on_device(scheme, device)


@torch.compiler.disable
def materialized_copy(scheme: Scheme, device: torch.device) -> Scheme:
    """A copy with all parameters already moved: a trace would bypass `ParametersOnDevice`."""
    copy = copy_on_device(scheme, device)
    for module in copy.modules():
        module.__dict__["_parameters"] = {name: module._parameters[name] for name in module._parameters}
    return copy


def first_with_parameters(module: nn.Module) -> nn.Module | None:
    """The first module within ``module`` (or itself) that owns a parameter; None without parameters."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return module
    for child in module._modules.values():
        first = None if child is None else first_with_parameters(child)
        if first is not None:
            return first
    return None


def copy_on_device(module: M, device: torch.device) -> M:
    """Copy a module and its submodules, without accelerate's hooks, with parameters that are read on ``device``."""
    copy = module.__class__.__new__(module.__class__)
    copy.__dict__.update({name: value for name, value in module.__dict__.items() if name not in (HOOK, *OWN)})
    copy.__dict__["_parameters"] = ParametersOnDevice(module._parameters, device, offload_of(module))
    copy.__dict__["_modules"] = {
        name: None if child is None else copy_on_device(child, device) for name, child in module._modules.items()
    }
    copy.__dict__[ORIGINAL] = module
    return copy


class ParametersOnDevice(dict[str, Any]):
    """The parameters of one module by name, each moved to a device when it is first read."""

    def __init__(self, parameters: dict[str, nn.Parameter | None], device: torch.device, offload: Any) -> None:
        super().__init__(parameters)
        self.device, self.offload = device, offload
        self.moved: dict[str, Tensor | None] = {}

    def __getitem__(self, name: str) -> Tensor | None:
        if name not in self.moved:
            self.moved[name] = self.move(name, super().__getitem__(name))
        return self.moved[name]

    def move(self, name: str, parameter: Tensor | None) -> Tensor | None:
        """The parameter on the device; an offloaded one is loaded from accelerate's map of weights.

        Raises:
            NoValues: the parameter is on the meta device, but accelerate did not offload it.
        """
        if parameter is None or not parameter.is_meta:
            return None if parameter is None else parameter.to(self.device)
        if self.offload is None:
            raise NoValues(
                f"The parameter {name!r} of a scheme is on the meta device, which has no values, and no hook of "
                "accelerate offloaded it. Load the model with hf_posenc.from_pretrained, or call to_empty and fill it."
            )
        return self.offload.weights_map[name].to(self.device, parameter.dtype)
