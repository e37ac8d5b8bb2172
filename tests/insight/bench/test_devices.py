"""Devices of the benchmark, with an emulated CUDA device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.bench import device_of
from hf_posenc.insight.bench.devices import Cpu, Cuda


class Gpu:
    """What stands for `torch.cuda`: kernels are queued, and run when somebody waits."""

    def __init__(self) -> None:
        self.queued: list[tuple[str, Any]] = []
        self.now = 0.0
        self.held = self.most = 1000

    def Event(self, enable_timing: bool) -> Any:
        assert enable_timing
        return Event(self)

    def synchronize(self, device: torch.device) -> None:
        for kind, value in self.queued:
            if kind == "kernel":
                self.now += value
            else:
                value.at = self.now
        self.queued.clear()

    def launch(self, milliseconds: float, size: int = 0) -> None:
        self.queued.append(("kernel", milliseconds))
        self.most = max(self.most, self.held + size)

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.most = self.held

    def memory_allocated(self, device: torch.device) -> int:
        return self.held

    def max_memory_allocated(self, device: torch.device) -> int:
        return self.most

    def empty_cache(self) -> None:
        pass

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 7, 8

    def get_device_name(self, device: torch.device) -> str:
        return "made up"


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at = gpu, -1.0

    def record(self) -> None:
        self.gpu.queued.append(("event", self))

    def elapsed_time(self, end: Event) -> float:
        assert self.at >= 0, "asked before it happened"
        return end.at - self.at


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


def test_cuda_time_is_that_of_the_kernels_and_of_no_earlier_ones(gpu: Gpu) -> None:
    cuda = Cuda(torch.device("cuda"), gpu)
    gpu.launch(5000.0)  # somebody else's, still running
    assert cuda.clock(lambda: gpu.launch(250.0)).wall == 0.25


def test_cuda_memory_is_what_is_above_what_was_held(gpu: Gpu) -> None:
    cuda = Cuda(torch.device("cuda"), gpu)
    gpu.launch(1.0, size=10**9)  # an earlier peak
    assert cuda.peak(lambda: gpu.launch(1.0, size=77)) == 77
    assert (cuda.free(), cuda.name) == (7, "made up")


def test_the_processor_has_a_name_and_memory() -> None:
    cpu = device_of("cpu")
    assert isinstance(cpu, Cpu)
    assert cpu.name
    assert cpu.free() is None or cpu.free() > 2**20  # type: ignore[operator]


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "mps", "meta"])
def test_missing_devices_are_refused(name: str) -> None:
    with pytest.raises(OptionOutOfRange, match=name):
        device_of(name)
