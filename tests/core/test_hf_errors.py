"""Errors of other libraries while a checkpoint is loaded are told apart."""

from __future__ import annotations

import pytest
import torch

from hf_posenc.core.files.hf_errors import explanation
from hf_posenc.errors import CheckpointMismatch, NoMemory

FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"),
]


@pytest.mark.parametrize("error", FULL, ids=["gpu", "python", "cpu"])
def test_memory_that_is_full_is_no_damaged_checkpoint(error: Exception) -> None:
    assert isinstance(explanation(error, "."), NoMemory)
    assert isinstance(explanation(RuntimeError("corrupt"), "."), CheckpointMismatch), "control"
