"""Names of what a module's forward pass takes."""

from __future__ import annotations

import inspect
from typing import Any

_NAMES: dict[Any, tuple[str, ...]] = {}  # a compiler warns of a cache around a function


def forward_parameters(cls: type[Any]) -> tuple[str, ...]:
    """Names of the parameters of a class's ``forward`` in their order, without ``self``; through decorators."""
    if cls not in _NAMES:
        _NAMES[cls] = tuple(inspect.signature(cls.forward).parameters)[1:]
    return _NAMES[cls]
