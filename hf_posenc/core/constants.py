"""Python numbers on a device.

A copy from the host makes the host wait for the kernels launched before it, and cannot be part of a CUDA graph: on a
GPU, constants are copied once and kept.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch._guards import detect_fake_mode

from hf_posenc.core.tracing import is_traced


def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers as a tensor ``[n]``, which the caller must not change."""
    if device.type != "cuda" or is_traced() or detect_fake_mode() is not None:  # a fake tensor must not be kept
        return torch.tensor(values, dtype=dtype, device=device)
    return _kept(values, dtype, device)


def on_device(numbers: tuple[float, ...] | Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers ``[n]``, fixed or learned."""
    return numbers.to(device, dtype) if isinstance(numbers, Tensor) else constant(numbers, dtype, device)


@lru_cache(maxsize=256)
def _kept(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # else the tensor could be part of no later training
        return torch.tensor(values, dtype=dtype, device=device)


def exact_dtype(device: torch.device) -> torch.dtype:
    """The widest floating-point type of a device: Metal has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


HALF = (torch.float16, torch.bfloat16)
