"""Devices of a benchmark: how to measure time and memory there.

On Linux the kernel keeps the most memory that a process had (its high-water mark), which can be reset; elsewhere a CPU
has no count of memory. On CUDA torch's allocator counts, and kernels run asynchronously, so that time is that between
two events on the device.
"""

from __future__ import annotations

import ctypes
import gc
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from hf_posenc.core import memory
from hf_posenc.errors import OptionOutOfRange


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
        """Time of a callable."""
        wall, processor = time.perf_counter(), time.process_time()
        run()
        return Elapsed(time.perf_counter() - wall, time.process_time() - processor)

    def peak(self, run: Callable[[], None]) -> int | None:
        """Peak memory from the kernel's count of touched pages; None where the kernel keeps none."""
        gc.collect()
        with suppress(OSError, AttributeError):  # only of the GNU library; memory kept by it would hide its reuse
            ctypes.CDLL(None).malloc_trim(0)
        if not memory.reset_peak():
            return None
        before = memory.resident() or 0
        run()
        return max(0, (memory.peak() or 0) - before)


class Cuda:
    """A GPU."""

    def __init__(self, device: torch.device, api: Any = torch.cuda) -> None:
        self.torch, self.api = device, api

    @property
    def name(self) -> str:
        """Name of the device, from the driver."""
        return str(self.api.get_device_name(self.torch))

    def clock(self, run: Callable[[], None]) -> Elapsed:
        """Seconds from the first kernel to the last, or of Python where that takes longer; and of the processor."""
        start, end = (self.api.Event(enable_timing=True) for _ in range(2))
        self.synchronize()
        processor = time.process_time()
        start.record()
        run()
        end.record()
        self.synchronize()
        return Elapsed(start.elapsed_time(end) / 1000, time.process_time() - processor)

    def peak(self, run: Callable[[], None]) -> int:
        """Bytes of tensors, as torch's allocator counts them."""
        gc.collect()
        self.synchronize()
        self.api.empty_cache()
        self.api.reset_peak_memory_stats(self.torch)
        before = self.api.memory_allocated(self.torch)
        run()
        self.synchronize()
        return int(self.api.max_memory_allocated(self.torch) - before)

    def synchronize(self) -> None:
        """Wait for all kernels."""
        self.api.synchronize(self.torch)


Device = Cpu | Cuda


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


SHORTEST = 0.05  # seconds of a sample: below, the clock and the scheduler show
MOST_CALLS = 64


@dataclass(frozen=True)
class Elapsed:
    """Time of a call.

    Attributes:
        wall: seconds on the clock.
        processor: seconds of all threads of this process.
    """

    wall: float
    processor: float


@dataclass(frozen=True)
class Ratio:
    """Ratio of paired times, over rounds.

    Attributes:
        median: of all rounds.
        low, high: first and third quartile.
    """

    median: float
    low: float
    high: float


Clock = Callable[[Callable[[], None]], Elapsed]
Timed = Any
"""Has ``call``, which is timed, and ``reset``, which restores the state before the next sample and is not."""


def calls_of(seconds: float) -> int:
    """Number of calls per sample, from the seconds of one."""
    return max(1, min(MOST_CALLS, round(SHORTEST / max(seconds, 1e-9))))


def interleaved(
    timed_calls: Mapping[str, Timed],
    rounds: int,
    clock: Clock,
    progress: Callable[[int], None] = lambda number: None,
) -> dict[str, list[Elapsed]]:
    """Measure the time of one call of each callable in each round; every second round goes backwards."""
    calls = {name: calls_of(sampled(timed, 1, clock).wall) for name, timed in timed_calls.items()}
    found: dict[str, list[Elapsed]] = {name: [] for name in timed_calls}
    for number in range(rounds):
        for name in list(timed_calls)[:: -1 if number % 2 else 1]:
            found[name].append(sampled(timed_calls[name], calls[name], clock))
        progress(number + 1)
    return found


def sampled(timed: Timed, calls: int, clock: Clock) -> Elapsed:
    """Time of one call, the mean of several."""
    timed.reset()

    def run() -> None:
        for _ in range(calls):
            timed.call()

    whole = clock(run)
    return Elapsed(whole.wall / calls, whole.processor / calls)


def ratio(of: list[float], to: list[float]) -> Ratio:
    """Ratio of times to those of ``to``, by round, summarised."""
    found = [a / b for a, b in zip(of, to, strict=True)]
    if len(found) == 1:
        return Ratio(found[0], found[0], found[0])
    low, _, high = quantiles(found, n=4, method="inclusive")
    return Ratio(median(found), low, high)
