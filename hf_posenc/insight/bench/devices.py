"""Devices of a benchmark: measure time and peak memory on a CPU or a CUDA GPU.

On Linux, the kernel records the peak memory of a process, and the record can be reset; on other systems, the memory of
a CPU is not measured. On CUDA, torch's allocator records the peak. Kernels run asynchronously there, so time is
measured between two events on the device.
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
        """Measure the time of a callable."""
        wall, processor = time.perf_counter(), time.process_time()
        run()
        return Elapsed(time.perf_counter() - wall, time.process_time() - processor)

    def peak(self, run: Callable[[], None]) -> int | None:
        """Measure the peak of resident memory, in bytes above the start; None if the kernel does not record it."""
        gc.collect()
        with suppress(OSError, AttributeError):  # GNU libc only: reused free memory would not count
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
        """Measure seconds between two events around the kernels, and seconds of the processor."""
        start, end = (self.api.Event(enable_timing=True) for _ in range(2))
        self.synchronize()
        processor = time.process_time()
        start.record()
        run()
        end.record()
        self.synchronize()
        return Elapsed(start.elapsed_time(end) / 1000, time.process_time() - processor)

    def peak(self, run: Callable[[], None]) -> int:
        """Measure the peak of torch's allocator, in bytes above the start."""
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
    """Return the device with a name; by default CUDA if available.

    Raises:
        OptionOutOfRange: there is no such device, or it is neither a CPU nor a CUDA GPU.
    """
    chosen = name or ("cuda" if torch.cuda.is_available() else "cpu")
    with suppress(RuntimeError):
        device = torch.device(chosen)
        if device.type == "cpu":
            return Cpu()
        if device.type == "cuda" and (device.index or 0) < torch.cuda.device_count():
            return Cuda(device)
    available = ", ".join(["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))])
    raise OptionOutOfRange(f"device must be one of {available}, got {chosen!r}. Name one of them.")


SHORTEST = 0.05  # seconds of a sample; the clock and the scheduler disturb shorter ones
MOST_CALLS = 64  # per sample


@dataclass(frozen=True)
class Elapsed:
    """Time of a call.

    Attributes:
        wall: elapsed seconds.
        processor: CPU seconds of all threads of this process.
    """

    wall: float
    processor: float


@dataclass(frozen=True)
class Ratio:
    """Ratio of paired times, summarised over rounds.

    Attributes:
        median: median of all rounds.
        low, high: first and third quartile.
    """

    median: float
    low: float
    high: float


Clock = Callable[[Callable[[], None]], Elapsed]
Timed = Any
"""Has ``call``, which is timed, and ``reset``, which restores the state before a sample and is not timed."""


def calls_of(seconds: float) -> int:
    """Return the number of calls per sample, from the seconds of one call."""
    return max(1, min(MOST_CALLS, round(SHORTEST / max(seconds, 1e-9))))


def interleaved(
    timed_calls: Mapping[str, Timed],
    rounds: int,
    clock: Clock,
    progress: Callable[[int], None] = lambda number: None,
) -> dict[str, list[Elapsed]]:
    """Time one call of each callable in each round; every second round runs in reverse order."""
    calls = {name: calls_of(sampled(timed, 1, clock).wall) for name, timed in timed_calls.items()}
    times: dict[str, list[Elapsed]] = {name: [] for name in timed_calls}
    for number in range(rounds):
        for name in list(timed_calls)[:: -1 if number % 2 else 1]:
            times[name].append(sampled(timed_calls[name], calls[name], clock))
        progress(number + 1)
    return times


def sampled(timed: Timed, calls: int, clock: Clock) -> Elapsed:
    """Return the time of one call, the mean over ``calls`` calls."""
    timed.reset()

    def run() -> None:
        for _ in range(calls):
            timed.call()

    total = clock(run)
    return Elapsed(total.wall / calls, total.processor / calls)


def ratio(times: list[float], baseline: list[float]) -> Ratio:
    """Summarise the ratios of times to the baseline times of the same rounds."""
    ratios = torch.tensor(times, dtype=torch.float64) / torch.tensor(baseline, dtype=torch.float64)
    low, middle, high = ratios.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    return Ratio(middle, low, high)
