"""The tensors that an object holds, such as a KV cache with its layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


def tensors_in(value: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """All tensors of containers and attributes, at any depth; modules and classes are left out.

    Args:
        value: an object, a container or a tensor.
        seen: identities of objects that are not entered again.
    """
    seen = set() if seen is None else seen
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in seen and not isinstance(value, (str, bytes, nn.Module, type)):
        seen.add(id(value))
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        for one in (*inner, *getattr(value, "__dict__", {}).values()):
            yield from tensors_in(one, seen)
