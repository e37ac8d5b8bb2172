"""Context parallelism: processes hold parts of each text, and torch's ring attention brings the parts together.

torch puts the ring in place of ``scaled_dot_product_attention``. It sees queries, keys and values and nothing else, so
it carries what the host's own attention carries: rotations and scales of a token's own position.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING

from torch.nn import functional

from hf_posenc.errors import BackendCannotCarry

if TYPE_CHECKING:
    from hf_posenc.schemes.base import Scheme


def context_parallel_active() -> bool:
    """Whether this call sees only a part of each text."""
    function = functional.scaled_dot_product_attention  # torch's own is a builtin
    return isinstance(function, FunctionType) and function.__module__.startswith("torch.distributed.")


def refuse_context_parallel(scheme: Scheme) -> None:
    """Say that a scheme needs more than a part of the text.

    Raises:
        BackendCannotCarry: always.
    """
    raise BackendCannotCarry(
        f"Scheme {scheme.extra_repr()!r} needs whole texts, and under context parallelism a process holds parts. "
        'Choose a scheme that only rotates, such as "yarn", or another kind of parallelism.'
    )
