"""Python numbers as tensors on a device.

A copy from the host waits for all kernels launched before it, and cannot be part of a CUDA graph. So constants are
copied to a GPU once and kept.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch._guards import detect_fake_mode

from hf_posenc.core.tracing import is_traced


def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers as a tensor ``[n]``, which callers must not modify."""
    if device.type != "cuda" or is_traced() or detect_fake_mode() is not None:  # a fake tensor must not be kept
        return torch.tensor(values, dtype=dtype, device=device)
    return _constant_on_gpu(values, dtype, device)


def on_device(numbers: tuple[float, ...] | Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Fixed or learned numbers as a tensor ``[n]`` on a device."""
    return numbers.to(device, dtype) if isinstance(numbers, Tensor) else constant(numbers, dtype, device)


@lru_cache(maxsize=256)
def _constant_on_gpu(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # training could not use an inference tensor
        return torch.tensor(values, dtype=dtype, device=device)


def exact_dtype(device: torch.device) -> torch.dtype:
    """The widest floating-point dtype of a device: Metal has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


HALF = (torch.float16, torch.bfloat16)
