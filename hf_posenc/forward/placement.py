"""Where a scheme's parameters are when a layer computes: on the layer's device, whatever has taken them elsewhere.

accelerate moves what a module holds when that module is *called*, and a scheme reads its parameters where its formula
needs them. Under offloading they are then on the meta device, which has shapes and no values; and of a scheme that all
layers share, layers on other devices need copies. Such a layer computes with a copy of the scheme object that has the
same options and submodules, and brings each parameter to the layer's device when it is first read. Nothing of the
model changes, gradients flow to the parameters that were copied, and the copy goes with the call.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hf_posenc.errors import NoValues
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.kept_answers import ORIGINAL

HOOK = "_hf_hook"
OWN = ("forward", "_old_forward")  # where a module's bound forward may be kept on the instance

M = TypeVar("M", bound=nn.Module)


def offload_of(module: nn.Module) -> Any:
    """accelerate's `AlignDevicesHook` that brings a module's own weights; None where they are not offloaded."""
    hook = module.__dict__.get(HOOK)
    return next((one for one in getattr(hook, "hooks", (hook,)) if getattr(one, "offload", False)), None)


def scheme_on(scheme: Scheme, device: torch.device) -> Scheme:
    """The scheme with all its parameters on ``device``: itself where they are there already.

    Raises:
        NoValues: when a parameter is read that is on the meta device, and nothing says where its values are.
    """
    first = holder(scheme)
    if first is None:
        return scheme
    if HOOK in first.__dict__:  # accelerate may have split the scheme itself
        here = all(parameter.device == device for parameter in scheme.parameters())
    else:
        here = next(parameter.device for parameter in first._parameters.values() if parameter is not None) == device
    if here:
        return scheme
    return brought(scheme, device) if torch.compiler.is_compiling() else copied(scheme, device)


@torch.compiler.disable
def brought(scheme: Scheme, device: torch.device) -> Scheme:
    """A copy whose parameters have all been brought: a trace looks past what `Moved` does when one is read."""
    copy = copied(scheme, device)
    for module in copy.modules():
        module.__dict__["_parameters"] = {name: module._parameters[name] for name in module._parameters}
    return copy


def holder(module: nn.Module) -> nn.Module | None:
    """The first module within ``module`` that has a parameter of its own; None where nothing is learned."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return module
    for child in module._modules.values():
        found = None if child is None else holder(child)
        if found is not None:
            return found
    return None


def copied(module: M, device: torch.device) -> M:
    """A copy of a module and all in it, without accelerate's hooks, whose parameters are read on ``device``."""
    copy = module.__class__.__new__(module.__class__)
    copy.__dict__.update({name: value for name, value in module.__dict__.items() if name not in (HOOK, *OWN)})
    copy.__dict__["_parameters"] = Moved(module._parameters, device, offload_of(module))
    copy.__dict__["_modules"] = {
        name: None if child is None else copied(child, device) for name, child in module._modules.items()
    }
    copy.__dict__[ORIGINAL] = module
    return copy


class Moved(dict[str, Any]):
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
        """A parameter on the device, its values from where accelerate keeps them if it has offloaded them.

        Raises:
            NoValues: it has none, and was not offloaded.
        """
        if parameter is None or not parameter.is_meta:
            return None if parameter is None else parameter.to(self.device)
        if self.offload is None:
            raise NoValues(
                f"The parameter {name!r} of a scheme is on the meta device, which has no values, and no hook of "
                "accelerate offloaded it. Load the model with hf_posenc.from_pretrained, or call to_empty and fill it."
            )
        return self.offload.weights_map[name].to(self.device, parameter.dtype)
