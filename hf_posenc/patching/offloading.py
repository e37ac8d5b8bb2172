"""What accelerate puts on the modules of a model that it spreads over devices, or offloads to memory or disk.

A hooked module has its hook in ``_hf_hook`` and a ``forward`` on the instance, which brings inputs and weights together
around ``_old_forward``: the class's own forward, bound to the instance. Where a hook offloads, the weights are on the
meta device between calls, and the hook's ``weights_map`` has their values. Removing a hook leaves the bound forward on
the instance. None of this is somebody's patch, and all of it has to follow where a module changes its class.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.core.tested_versions import beyond_tested
from hf_posenc.forward.placement import OWN, Offload, offload_of

Offloads = Mapping[nn.Module, Offload]


def offloads_of(model: nn.Module) -> Offloads:
    """All modules of a model whose own weights are offloaded, and how.

    Warns:
        UntestedVersion: accelerate, whose hooks are read, is newer than this package is tested with.
    """
    found = dict(_walk(model, None))
    if found:
        beyond_tested("accelerate")
    return found


def _walk(module: nn.Module, inherited: Offload | None) -> Iterator[tuple[nn.Module, Offload]]:
    found = offload_of(module, inherited)
    if found is not None:
        yield module, found
    for name, child in module.named_children():
        yield from _walk(child, None if found is None else found.below(name))


def offloaded_values(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model by name, wherever the values of those are that have been offloaded."""
    offloads, found = offloads_of(model), dict(model.state_dict())
    for prefix, module in model.named_modules():
        for name, weight in module.named_parameters(recurse=False):
            if weight.is_meta and module in offloads:
                found[f"{prefix}.{name}" if prefix else name] = offloads[module].value(name).to(weight.dtype)
    return found


def computing_device(module: nn.Module, offloads: Offloads, *, around: nn.Module | None = None) -> torch.device:
    """Where a module's weights are while it computes; the meta device where they have no values anywhere.

    Args:
        module: a part of a model.
        offloads: of the model.
        around: what the module is part of, which says it where the module holds no tensor. Quantised layers keep no
            parameters: packed weights are buffers (GPTQ, AWQ), or hidden from torch (``torch.ao``).
    """
    for kind in (nn.Module.parameters, nn.Module.buffers):
        weights = [(part, weight) for part in module.modules() for weight in kind(part, recurse=False)]
        for part, weight in weights:
            if part in offloads and offloads[part].hook.execution_device is not None:
                return torch.device(offloads[part].hook.execution_device)
            if not weight.is_meta:
                return weight.device
        if weights:
            return torch.device("meta")
    return torch.device("meta") if around is None else computing_device(around, offloads)


def offload_beside(owner: nn.Module, name: str, neighbour: nn.Module, offloads: Offloads) -> None:
    """Offload a new child of ``owner``, if the weights of ``neighbour`` are offloaded."""
    child: nn.Module = owner.get_submodule(name)
    around = offloads[owner].below(name) if owner in offloads else None
    beside = next((offloads[part] for part in neighbour.modules() if part in offloads), None)
    if around is not None:
        if not isinstance(around.hook.weights_map, ChainMap):  # ours: what is there may be a folder on disk
            around.hook.weights_map = ChainMap({}, around.hook.weights_map)
        for key, weight in child.named_parameters():
            around.hook.weights_map[around.path + key] = weight.detach().to("cpu")
        child.to("meta")
    elif beside is not None:  # each of its modules then keeps its own weights
        from accelerate.hooks import attach_align_device_hook

        attach_align_device_hook(
            child, beside.hook.execution_device, offload=True, offload_buffers=beside.hook.offload_buffers
        )


def forget_child(owner: nn.Module, name: str, offloads: Offloads) -> None:
    """Undo what `offload_beside` wrote into the weights map of a hook around the child."""
    around = offloads[owner].below(name) if owner in offloads else None
    if around is None or not isinstance(around.hook.weights_map, ChainMap):
        return
    ours, before = around.hook.weights_map.maps
    for key in [key for key in ours if key.startswith(around.path)]:
        del ours[key]
    if not ours:
        around.hook.weights_map = before


def has_foreign_forward(module: nn.Module) -> bool:
    """Whether a module has a forward on the instance that is neither its class's own nor accelerate's around that."""
    forward = module.__dict__.get("forward")
    if isinstance(forward, partial) and getattr(forward.func, "__module__", "") == "accelerate.hooks":
        return not is_own(module, module.__dict__.get("_old_forward"))
    return forward is not None and not is_own(module, forward)


def is_own(module: nn.Module, forward: Any) -> bool:
    """Whether ``forward`` is the forward of a module's class, bound to the module."""
    return isinstance(forward, MethodType) and forward.__self__ is module and forward.__func__ is type(module).forward


def change_class(module: nn.Module, cls: type[nn.Module]) -> None:
    """Another class for the same object; a bound forward that accelerate keeps on the instance is then the new one."""
    kept = [name for name in OWN if is_own(module, module.__dict__.get(name))]
    module.__class__ = cls
    for name in kept:
        module.__dict__[name] = MethodType(cls.forward, module)
