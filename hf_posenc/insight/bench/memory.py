"""Peak memory of a piece of work, above what the process held before it.

On Linux the kernel keeps a process's high-water mark, and sets it back when it is asked to. Elsewhere the profiler of
torch adds up what torch's own allocator gives and takes: no Python objects, and nothing that libraries allocate.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_HIGH_WATER = "5"  # `man 5 proc`, since Linux 4.0
ALLOCATION = "[memory]"  # what torch's profiler calls one


def peak(run: Callable[[], None]) -> int:
    """Bytes that were held at most while something ran, more than before."""
    return high_water(run) if has_high_water() else allocated(run)


def has_high_water() -> bool:
    """Whether the kernel lets its high-water mark be set back."""
    with suppress(OSError):
        RESET.write_text(RESET_HIGH_WATER)
        return "VmHWM" in STATUS.read_text()
    return False


def high_water(run: Callable[[], None]) -> int:
    """As the kernel counts it: pages that were touched."""
    give_back()
    RESET.write_text(RESET_HIGH_WATER)
    before = kernel_bytes("VmRSS")
    run()
    return max(0, kernel_bytes("VmHWM") - before)


def kernel_bytes(field: str) -> int:
    """A line of the process's status."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])


def give_back() -> None:
    """Return free memory to the system: what the allocator has kept would hide that it is used again."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only of the GNU library
        ctypes.CDLL(None).malloc_trim(0)


def allocated(run: Callable[[], None]) -> int:
    """As torch counts it: tensors."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        run()
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in watched.profiler.kineto_results.events()  # type: ignore[union-attr]
        if event.name() == ALLOCATION and event.device_type() == torch.profiler.DeviceType.CPU
    )
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most
