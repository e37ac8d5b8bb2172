"""Restore a model after a change, whichever library made the change; set its scheme aside for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from hf_posenc.patching.patch import unpatch_model
from hf_posenc.patching.state import STASH, is_patched


@contextmanager
def rollback_on_error(model: nn.Module) -> Iterator[None]:
    """Restore every module of ``model`` if the block raises; see `snapshot`.

    Values of parameters are not copied: a block that writes into them must not fail afterwards.
    """
    restore = snapshot(model)
    try:
        yield
    except BaseException:
        restore()
        raise


def snapshot(model: nn.Module) -> Callable[[], None]:
    """A function that restores all modules of ``model``: class, attributes, children, hooks, device, ``requires_grad``.

    Modules and parameters are the same objects again; the values of parameters are left as they are.
    """
    modules = [(module, type(module), _attributes(module)) for module in model.modules()]
    weights = [(weight, weight.requires_grad, weight.device) for weight in model.parameters()]
    without_gradient = [weight for weight in model.parameters() if weight.grad is None]

    def restore() -> None:
        for module, cls, attributes in modules:
            object.__setattr__(module, "__class__", cls)
            module.__dict__.clear()
            module.__dict__.update(attributes)
        for weight in without_gradient:
            weight.grad = None
        for weight, requires_grad, device in weights:
            weight.requires_grad_(requires_grad)
            if weight.device != device and "meta" not in (weight.device.type, device.type):
                weight.data = weight.data.to(device)  # where buffers, which are other tensors when moved, are again

    return restore


def _attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes of an instance, with copies of its dictionaries and sets, which hold children and hooks."""
    return {
        name: value.copy() if isinstance(value, (dict, set)) and name != STASH else value
        for name, value in module.__dict__.items()
    }


@contextmanager
def scheme_set_aside(model: nn.Module) -> Iterator[None]:
    """Run the block on a model without its scheme, which it has again afterwards, learned parameters included.

    A model without a scheme is left as it is. Inside the block the model may be patched and unpatched again.

    Raises:
        ModelInUse: a forward pass computes with the model.
    """
    if not is_patched(model):
        yield
        return
    restore = snapshot(model)
    unpatch_model(model)
    try:
        yield
    finally:
        restore()
