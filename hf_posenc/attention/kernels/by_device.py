"""Kernels that return the log-sum-exp of every query, which merging partial results needs: one per device.

Each has `usable`, `attend` and `gradient` with the same meaning. On the CPU a float32 mask is added to the scores; a
CUDA kernel takes no such mask but a window: a number n, with causality, stands for a query's own key and the n − 1
before it.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from hf_posenc.attention.kernels import flash_cpu, flash_cuda

Added = Tensor | int | None


BY_DEVICE: dict[str, ModuleType] = {"cpu": flash_cpu, "cuda": flash_cuda}


def of(tensor: Tensor) -> ModuleType:
    """The kernel of a tensor's device."""
    return BY_DEVICE[tensor.device.type]


def usable(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether these tensors can go through a kernel of their device."""
    kernel = BY_DEVICE.get(query.device.type)
    return kernel is not None and kernel.usable(query, key, value)


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, mask: Added, scale: float
) -> tuple[Tensor, Tensor]:
    """Output ``[batch, heads, query, dim]`` and log-sum-exp ``[batch, heads, query]``, float32.

    Causality is that of a square. Every query needs a visible key: the result for others differs by kernel.
    """
    return of(query).attend(query, key, value, causal=causal, scale=scale, **_added(mask))


def gradient(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool,
    mask: Added,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value; ``out`` and ``lse`` may be those of a merge that includes this call."""
    return of(query).gradient(grad, query, key, value, out, lse, causal=causal, scale=scale, **_added(mask))


def on_cuda(device: torch.device) -> bool:
    """Whether the kernels of a device are those of CUDA, which take windows (and no mask)."""
    return BY_DEVICE.get(device.type) is flash_cuda


def _added(mask: Added) -> dict[str, object]:
    return {"window": mask} if isinstance(mask, int) else {"mask": mask}
