"""Check that learned parameters fit in memory, before they are allocated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hf_posenc.core.geometry import Geometry
from hf_posenc.core.memory import main_memory
from hf_posenc.errors import NoMemory, OptionOutOfRange, shown
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.spec import Plan

UNCHECKED_COUNT = 1 << 28  # parameters up to which no count is needed
BYTES_PER_NUMBER = 4  # bytes, in float32


def check_parameter_memory(chosen: Plan, geometry: Geometry) -> None:
    """Refuse schemes whose learned parameters take more than half of main memory.

    Raises:
        OptionOutOfRange: one does.
    """
    for cls, options in chosen.parts:
        counts = [value for value in options.values() if isinstance(value, int)]
        if max(geometry.target_length, *counts, 0) * geometry.width * geometry.layers <= UNCHECKED_COUNT:
            continue
        needed, available = BYTES_PER_NUMBER * parameter_count(cls, options, geometry), main_memory() // 2
        if needed > available:
            described = ", ".join(f"{name}={shown(value)}" for name, value in options.items()) or "its defaults"
            raise OptionOutOfRange(
                f"Scheme {cls.record.name!r} with {described} learns {needed / 2**30:,.1f} GiB of parameters for "
                f"{geometry.target_length} positions, and this machine can spare {available / 2**30:,.1f}. "
                "Ask for fewer positions or a smaller option."
            )


def parameter_count(cls: type[Scheme], options: Mapping[str, Any], geometry: Geometry) -> int:
    """Number of parameters a scheme learns in all layers, counted on the meta device."""
    with torch.device("meta"):
        trial = cls(geometry, **options)
    return (1 if trial.shared else geometry.layers) * sum(parameter.numel() for parameter in trial.parameters())


def check_rank_memory(rank: int, numbers: int, copies: int = 1) -> None:
    """Refuse low-rank matrices, or virtual tokens, that take more than all memory, before any is allocated.

    Args:
        rank: of the matrices, or number of virtual tokens.
        numbers: parameters of rank 1, or of one virtual token.
        copies: of each number that are held at once.

    Raises:
        NoMemory: they do.
    """
    needed, available = copies * BYTES_PER_NUMBER * rank * numbers, main_memory()
    if needed > available:
        raise NoMemory(
            f"Matrices of rank {shown(rank)}, or so many virtual tokens, take {needed / 2**30:,.1f} GiB of memory, and "
            f"there are {available / 2**30:,.1f} GiB. Choose a smaller rank."
        )
