"""Read and restore torch's process-wide settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.backends import cuda

SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default_device": (torch.get_default_device, torch.set_default_device),
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic_algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "math_sdp": (cuda.math_sdp_enabled, cuda.enable_math_sdp),
    "flash_sdp": (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    "mem_efficient_sdp": (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
}


def current_settings() -> dict[str, Any]:
    """Values of all settings, by name."""
    return {name: getter() for name, (getter, _) in SETTINGS.items()}


@contextmanager
def restore_settings() -> Iterator[None]:
    """Restore on exit every setting that was changed in the block."""
    before = current_settings()
    try:
        yield
    finally:
        for name, (getter, setter) in SETTINGS.items():
            if getter() != before[name]:
                setter(before[name])
