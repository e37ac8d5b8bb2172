"""Restore a model after a failed change, whichever library made the change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def rollback_on_error(model: nn.Module) -> Iterator[None]:
    """Restore every module of ``model`` if the block raises: class, attributes, children, hooks, ``requires_grad``.

    Values of parameters are not copied: a block that writes into them must not fail afterwards.
    """
    modules = [(module, type(module), _attributes(module)) for module in model.modules()]
    trained = [(weight, weight.requires_grad) for weight in model.parameters()]
    try:
        yield
    except BaseException:
        for module, cls, attributes in modules:
            object.__setattr__(module, "__class__", cls)
            module.__dict__.clear()
            module.__dict__.update(attributes)
        for weight, was in trained:
            weight.requires_grad_(was)
        raise


def _attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes of an instance, with copies of its dictionaries and sets, which hold children and hooks."""
    return {
        name: value.copy() if isinstance(value, (dict, set)) and name != "posenc_patch" else value
        for name, value in module.__dict__.items()
    }
