"""Whether what a scheme learns, and a text to be read, has room on this machine, asked before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import NoMemory, OptionOutOfRange, shown
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.spec import Plan

FEW = 1 << 28  # numbers of any part of a model that need no counting
NUMBER = 4  # bytes, in float32
STATES, INNER = 10, 5
"""Copies of a layer's states, and of what is inside its feed-forward part, that live at once while a text is read:
measured on Llama, where the estimate is 5 % off; biases and GPT-2 take half as much again."""
UNKNOWN = 16 << 30  # bytes of a machine that does not tell


def check_room(chosen: Plan, geometry: Geometry) -> None:
    """Refuse schemes whose parameters take more than half of the memory.

    Raises:
        OptionOutOfRange: they do.
    """
    for cls, options in chosen.parts:
        counts = [value for value in options.values() if isinstance(value, int)]
        if max(geometry.target_length, *counts, 0) * geometry.width * geometry.layers <= FEW:
            continue
        wanted, room = NUMBER * learned(cls, options, geometry), memory() // 2
        if wanted > room:
            told = ", ".join(f"{name}={shown(value)}" for name, value in options.items()) or "its defaults"
            raise OptionOutOfRange(
                f"Scheme {cls.record.name!r} with {told} learns {wanted / 2**30:,.1f} GiB of parameters for "
                f"{geometry.target_length} positions, and this machine has room for {room / 2**30:,.1f}. "
                "Ask for fewer positions or a smaller option."
            )


def learned(cls: type[Scheme], options: Mapping[str, Any], geometry: Geometry) -> int:
    """How many numbers a scheme learns in all layers, counted where none takes any memory."""
    with torch.device("meta"):
        trial = cls(geometry, **options)
    return (1 if trial.shared else geometry.layers) * sum(parameter.numel() for parameter in trial.parameters())


def check_text_room(model: nn.Module, length: int, rows: int = 1) -> None:
    """Refuse texts that cannot be read on this machine whatever the scheme: an estimate, and a low one.

    Args:
        model: that shall read them, without keeping a cache.
        length: tokens of a text.
        rows: texts at a time.

    Raises:
        NoMemory: their states alone take more than all memory of the device.
    """
    wanted, room = rows * length * bytes_a_token(model), memory_of(next(model.parameters()).device)
    if wanted > room:
        raise NoMemory(
            f"Texts of {length:,} tokens, {rows} at a time, take some {wanted / 2**30:,.1f} GiB of memory at the "
            f"least, and there are {room / 2**30:,.1f} GiB. Choose shorter lengths or a smaller batch."
        )


def check_rank_room(rank: int, numbers: int, copies: int = 1) -> None:
    """Refuse low-rank matrices, or virtual tokens, that take more than all memory, before any is allocated.

    Args:
        rank: of the matrices, or number of virtual tokens.
        numbers: that a rank of 1, or one virtual token, consists of.
        copies: of each number that are held at once.

    Raises:
        NoMemory: they do.
    """
    wanted, room = copies * NUMBER * rank * numbers, memory()
    if wanted > room:
        raise NoMemory(
            f"Matrices of rank {shown(rank)}, or so many virtual tokens, take {wanted / 2**30:,.1f} GiB of memory, and "
            f"there are {room / 2**30:,.1f} GiB. Choose a smaller rank."
        )


def bytes_a_token(model: nn.Module) -> int:
    """Memory that a token of a text takes while a model reads it."""
    weight: Any = model.get_input_embeddings().weight  # type: ignore[operator,union-attr]
    width = weight.shape[-1]
    config: Any = getattr(model, "config", None)
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * width
    return int(weight.element_size() * (STATES * width + INNER * inner))


def memory_of(device: torch.device) -> int:
    """Bytes of memory of a device."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else memory()


def memory() -> int:
    """Bytes of main memory."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return UNKNOWN
