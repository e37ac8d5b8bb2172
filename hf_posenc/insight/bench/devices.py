"""Devices of a benchmark: how to measure time and memory there, and free memory."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch

from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.bench import memory
from hf_posenc.insight.bench.cuda import Cuda
from hf_posenc.insight.bench.timing import Elapsed, cpu_clock


class Device(Protocol):
    """A device to run a benchmark on."""

    @property
    def torch(self) -> torch.device:
        """Device of torch."""

    @property
    def name(self) -> str:
        """Name of the device."""

    def clock(self, run: Callable[[], None]) -> Elapsed:
        """Time of a callable."""

    def peak(self, run: Callable[[], None]) -> int:
        """Peak memory of a callable above what was allocated before, in bytes."""

    def free(self) -> int | None:
        """Free memory in bytes, if known."""


class Cpu:
    """The processor of this machine."""

    torch = torch.device("cpu")

    @property
    def name(self) -> str:
        """Name of the processor, from the kernel or else from Python."""
        with suppress(OSError, StopIteration):
            lines = Path("/proc/cpuinfo").read_text().splitlines()
            return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
        return platform.processor() or platform.machine()

    def clock(self, run: Callable[[], None]) -> Elapsed:
        """See `Device.clock`."""
        return cpu_clock(run)

    def peak(self, run: Callable[[], None]) -> int:
        """See `Device.peak`."""
        return memory.peak(run)

    def free(self) -> int | None:
        """Free memory in bytes without swapping, from the kernel."""
        with suppress(OSError, StopIteration):
            lines = Path("/proc/meminfo").read_text().splitlines()
            return 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
        with suppress(ValueError, OSError, AttributeError):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return None


def device_of(name: str | None) -> Device:
    """The device of a name; by default CUDA where there is any.

    Raises:
        OptionOutOfRange: there is no such device, or none that this can time.
    """
    given = name or ("cuda" if torch.cuda.is_available() else "cpu")
    with suppress(RuntimeError):
        device = torch.device(given)
        if device.type == "cpu":
            return Cpu()
        if device.type == "cuda" and (device.index or 0) < torch.cuda.device_count():
            return Cuda(device)
    found = ", ".join(["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))])
    raise OptionOutOfRange(f"device must be one of {found}, got {given!r}. Name one of them.")
