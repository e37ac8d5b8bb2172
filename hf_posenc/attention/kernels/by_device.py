"""The kernel of each device that returns the log-sum-exp of every query, as merging partial outputs requires.

Each kernel module has `usable`, `attend` and `gradient` with equal arguments; ``mask`` is a `MaskOrWindow`.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from hf_posenc.attention.kernels import flash_cpu, flash_cuda

MaskOrWindow = Tensor | int | None
"""On the CPU a float32 mask that is added to the scores. CUDA kernels take a window instead: a number n stands
for a query's own key and the n − 1 keys before it, under causality."""

BY_DEVICE: dict[str, ModuleType] = {"cpu": flash_cpu, "cuda": flash_cuda}


def kernel_of(tensor: Tensor) -> ModuleType:
    """The kernel of a tensor's device."""
    return BY_DEVICE[tensor.device.type]


def usable(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether these tensors can go through a kernel of their device."""
    kernel = BY_DEVICE.get(query.device.type)
    return kernel is not None and kernel.usable(query, key, value)


def on_cuda(device: torch.device) -> bool:
    """Whether a device uses the CUDA kernels, which take a window instead of a mask."""
    return BY_DEVICE.get(device.type) is flash_cuda
