"""Whether what a scheme learns, and a text to be read, has room on this machine, asked before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hf_posenc.core.geometry import Geometry
from hf_posenc.core.memory import main_memory
from hf_posenc.errors import NoMemory, OptionOutOfRange, shown
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.spec import Plan

UNCHECKED_COUNT = 1 << 28  # numbers of any part of a model that need no counting
BYTES_PER_NUMBER = 4  # bytes, in float32


def check_parameter_memory(chosen: Plan, geometry: Geometry) -> None:
    """Refuse schemes whose parameters take more than half of the memory.

    Raises:
        OptionOutOfRange: they do.
    """
    for cls, options in chosen.parts:
        counts = [value for value in options.values() if isinstance(value, int)]
        if max(geometry.target_length, *counts, 0) * geometry.width * geometry.layers <= UNCHECKED_COUNT:
            continue
        wanted, room = BYTES_PER_NUMBER * parameter_count(cls, options, geometry), main_memory() // 2
        if wanted > room:
            told = ", ".join(f"{name}={shown(value)}" for name, value in options.items()) or "its defaults"
            raise OptionOutOfRange(
                f"Scheme {cls.record.name!r} with {told} learns {wanted / 2**30:,.1f} GiB of parameters for "
                f"{geometry.target_length} positions, and this machine has room for {room / 2**30:,.1f}. "
                "Ask for fewer positions or a smaller option."
            )


def parameter_count(cls: type[Scheme], options: Mapping[str, Any], geometry: Geometry) -> int:
    """How many numbers a scheme learns in all layers, counted where none takes any memory."""
    with torch.device("meta"):
        trial = cls(geometry, **options)
    return (1 if trial.shared else geometry.layers) * sum(parameter.numel() for parameter in trial.parameters())


def check_rank_memory(rank: int, numbers: int, copies: int = 1) -> None:
    """Refuse low-rank matrices, or virtual tokens, that take more than all memory, before any is allocated.

    Args:
        rank: of the matrices, or number of virtual tokens.
        numbers: that a rank of 1, or one virtual token, consists of.
        copies: of each number that are held at once.

    Raises:
        NoMemory: they do.
    """
    wanted, room = copies * BYTES_PER_NUMBER * rank * numbers, main_memory()
    if wanted > room:
        raise NoMemory(
            f"Matrices of rank {shown(rank)}, or so many virtual tokens, take {wanted / 2**30:,.1f} GiB of memory, and "
            f"there are {room / 2**30:,.1f} GiB. Choose a smaller rank."
        )
