"""Detect context parallelism, where each process holds a part of every sequence, and refuse what it cannot compute.

torch replaces ``scaled_dot_product_attention`` by ring attention, which takes queries, keys and values and nothing
else: it works with rotations and scales of a token's own position, and with no bias, region or mask.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

from torch.nn import functional

from hf_posenc.errors import BackendCannotCarry

if TYPE_CHECKING:
    from hf_posenc.core.terms import Terms
    from hf_posenc.schemes.base import Scheme


def context_parallel_active() -> bool:
    """Whether this call sees only a part of each text."""
    function = functional.scaled_dot_product_attention  # torch's own is a builtin
    return isinstance(function, FunctionType) and function.__module__.startswith("torch.distributed.")


def refuse_context_parallel(scheme: Scheme) -> None:
    """Refuse a scheme that needs whole sequences.

    Raises:
        BackendCannotCarry: always.
    """
    raise BackendCannotCarry(
        f"Scheme {scheme.extra_repr()!r} needs whole texts, and under context parallelism a process holds parts. "
        'Choose a scheme that only rotates, such as "yarn", or another kind of parallelism.'
    )


def check_context_parallel(scheme: Scheme, terms: Terms, mask: Any) -> None:
    """Refuse terms that need whole texts where a process holds parts of them.

    Raises:
        BackendCannotCarry: context parallelism is active, and the terms need more than a token's own position.
    """
    if context_parallel_active() and (scheme.needs_whole_text or not terms.scales_only or mask is not None):
        refuse_context_parallel(scheme)
