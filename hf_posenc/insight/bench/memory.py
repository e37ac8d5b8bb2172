"""Peak memory of a callable, above what the process had allocated before.

On Linux the kernel keeps a process's peak memory (high-water mark), which can be reset. Elsewhere torch's profiler adds
up what torch's own allocator allocates and frees: no Python objects, and nothing that libraries allocate.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress

import torch
from torch.profiler import ProfilerActivity, profile

from hf_posenc.core import memory

ALLOCATION = "[memory]"  # what torch's profiler calls one


def peak(run: Callable[[], None]) -> int:
    """Peak memory while a callable runs, above that before, in bytes."""
    return high_water(run) if has_high_water() else allocated(run)


def has_high_water() -> bool:
    """Whether the kernel's high-water mark can be reset."""
    return memory.reset_peak()


def high_water(run: Callable[[], None]) -> int:
    """Peak memory from the kernel's count of touched pages.

    Raises:
        OSError: the high-water mark cannot be reset.
    """
    give_back()
    if not memory.reset_peak():
        raise OSError("the high-water mark of this process cannot be reset")
    before = memory.resident() or 0
    run()
    return max(0, (memory.peak() or 0) - before)


def give_back() -> None:
    """Return free memory to the system: memory kept by the allocator would hide its reuse."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only of the GNU library
        ctypes.CDLL(None).malloc_trim(0)


def allocated(run: Callable[[], None]) -> int:
    """Peak memory of tensors, from torch's profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        run()
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in watched.profiler.kineto_results.events()
        if event.name() == ALLOCATION and event.device_type() == torch.profiler.DeviceType.CPU
    )
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most
