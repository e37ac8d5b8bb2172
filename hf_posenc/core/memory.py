"""Main and GPU memory of this machine, memory of a forward pass, and tensors in an object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

from hf_posenc.errors import NoMemory

HIDDEN_COPIES, FEED_FORWARD_COPIES = 10, 5
"""Copies of a layer's hidden states and feed-forward activations that a forward pass holds at the same time.

Measured on Llama, where the estimate is 5 % off. Biases and GPT-2 take 1.5 times as much."""


def check_text_memory(model: nn.Module, length: int, rows: int = 1) -> None:
    """Refuse sequences whose forward pass does not fit in memory under any scheme, by a low estimate."""
    needed, device = rows * length * bytes_per_token(model), next(model.parameters()).device
    available = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else main_memory()
    if needed > available:
        raise NoMemory(
            f"Sequences of {length:,} tokens, {rows} at a time, take at least {needed / 2**30:,.1f} GiB of memory, but "
            f"there are {available / 2**30:,.1f} GiB. Choose shorter lengths or a smaller batch."
        )


def bytes_per_token(model: nn.Module) -> int:
    """Bytes of memory per token of a forward pass without a KV cache."""
    weight: Any = model.get_input_embeddings().weight  # type: ignore[operator]
    width = weight.shape[-1]
    config: Any = getattr(model, "config", None)
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * width
    return int(weight.element_size() * (HIDDEN_COPIES * width + FEED_FORWARD_COPIES * inner))


def main_memory() -> int:
    """Bytes of main memory."""
    return int(psutil.virtual_memory().total)


STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # `man 5 proc`, since Linux 4.0


def reset_peak() -> bool:
    """Restart the peak from the current memory; false if the system does not support or allow this."""
    with suppress(OSError):
        CLEAR.write_text(RESET_PEAK)
        return peak() is not None
    return False


def peak() -> int | None:
    """Largest resident memory since `reset_peak`, in bytes; None if the system does not report it."""
    return _status_bytes("VmHWM")


def resident() -> int | None:
    """Current resident memory in bytes; None if the system does not report it."""
    return _status_bytes("VmRSS")


def _status_bytes(field: str) -> int | None:
    with suppress(OSError, ValueError):
        fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
        return 1024 * int(fields[field].split()[0]) if field in fields else None
    return None


def tensors_in(value: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """All tensors in containers and attributes, at any depth; modules and classes are skipped."""
    seen = set() if seen is None else seen
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in seen and not isinstance(value, (str, bytes, nn.Module, type)):
        seen.add(id(value))
        if isinstance(value, dict):
            children = list(value.values())
        else:
            children = list(value) if isinstance(value, (list, tuple)) else []
        for child in (*children, *getattr(value, "__dict__", {}).values()):
            yield from tensors_in(child, seen)
