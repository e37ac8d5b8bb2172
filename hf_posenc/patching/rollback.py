"""Restore a model after a change, whichever library made the change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


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
    """A function that restores every module of ``model``: class, attributes, children, hooks, ``requires_grad``.

    Modules and parameters are the same objects again; the values of parameters are left as they are.
    """
    modules = [(module, type(module), _attributes(module)) for module in model.modules()]
    trained = [(weight, weight.requires_grad) for weight in model.parameters()]

    def restore() -> None:
        for module, cls, attributes in modules:
            object.__setattr__(module, "__class__", cls)
            module.__dict__.clear()
            module.__dict__.update(attributes)
        for weight, was in trained:
            weight.requires_grad_(was)

    return restore


def _attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes of an instance, with copies of its dictionaries and sets, which hold children and hooks."""
    return {
        name: value.copy() if isinstance(value, (dict, set)) and name != "posenc_patch" else value
        for name, value in module.__dict__.items()
    }
