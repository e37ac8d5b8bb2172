"""A CUDA device: kernels run asynchronously, so time is that between two events on the device."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import torch

from hf_posenc.insight.bench.timing import Elapsed


class Cuda:
    """A GPU.

    Args:
        device: as torch knows it.
        api: `torch.cuda`, or its substitute in a test.
    """

    def __init__(self, device: torch.device, api: object = torch.cuda) -> None:
        self.torch, self.api = device, api

    @property
    def name(self) -> str:
        """Name of the device, from the driver."""
        return str(self.api.get_device_name(self.torch))  # type: ignore[attr-defined]

    def clock(self, run: Callable[[], None]) -> Elapsed:
        """Seconds from the first kernel to the last, or of Python where that takes longer; and of the processor."""
        start, end = (self.api.Event(enable_timing=True) for _ in range(2))  # type: ignore[attr-defined]
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
        self.api.empty_cache()  # type: ignore[attr-defined]
        self.api.reset_peak_memory_stats(self.torch)  # type: ignore[attr-defined]
        before = self.api.memory_allocated(self.torch)  # type: ignore[attr-defined]
        run()
        self.synchronize()
        return int(self.api.max_memory_allocated(self.torch) - before)  # type: ignore[attr-defined]

    def free(self) -> int | None:
        """Free memory in bytes, from the driver."""
        return int(self.api.mem_get_info(self.torch)[0])  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Wait for all kernels."""
        self.api.synchronize(self.torch)  # type: ignore[attr-defined]
