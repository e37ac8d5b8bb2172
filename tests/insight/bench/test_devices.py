"""Devices of the benchmark, with an emulated CUDA device, and paired rounds, with emulated clocks and calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.bench import device_of
from hf_posenc.insight.bench.devices import MOST_CALLS, Cuda, Elapsed, Ratio, calls_of, interleaved, ratio


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
    assert cuda.name == "made up"


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "mps", "meta"])
def test_missing_devices_are_refused(name: str) -> None:
    with pytest.raises(OptionOutOfRange, match=name):
        device_of(name)


class FakeCall:
    """Takes as long as it says, on a clock that moves only when it is called."""

    seconds = 0.0

    def __init__(self, name: str, costs: list[float], calls_made: list[str]) -> None:
        self.name, self.costs, self.calls_made = name, iter(costs), calls_made

    def reset(self) -> None:
        self.calls_made.append(f"reset {self.name}")
        FakeCall.seconds += 1000.0  # would show if it were counted

    def call(self) -> None:
        self.calls_made.append(self.name)
        FakeCall.seconds += next(self.costs)


def clock(run: Callable[[], None]) -> Elapsed:
    before = FakeCall.seconds
    run()
    return Elapsed(FakeCall.seconds - before, 2 * (FakeCall.seconds - before))


def test_every_round_runs_in_the_reverse_order_of_the_one_before() -> None:
    calls_made: list[str] = []
    timed_calls = {name: FakeCall(name, [1.0] * 5, calls_made) for name in "abc"}
    interleaved(timed_calls, 4, clock)
    calls = [word for word in calls_made if not word.startswith("reset")]
    assert calls == [*"abc", *"abc", *"cba", *"abc", *"cba"]  # the first three are not timed
    assert calls_made[0::2] == [f"reset {name}" for name in calls]


def test_a_machine_that_slows_down_does_not_affect_the_ratio() -> None:
    drift = [1.0, 1.0, 2.0, 4.0, 8.0, 16.0]
    slow, fast = FakeCall("slow", [3 * x for x in drift], []), FakeCall("fast", drift, [])
    found = interleaved({"slow": slow, "fast": fast}, 5, clock)
    assert [t.wall for t in found["fast"]] == drift[1:]
    wall = [[t.wall for t in found[name]] for name in ("slow", "fast")]
    assert ratio(*wall) == Ratio(3.0, 3.0, 3.0)
    assert max(wall[0]) / min(wall[1]) == 48.0  # control: what unpaired times could say
    assert [t.processor for t in found["fast"]] == [2 * x for x in drift[1:]]


def test_short_calls_are_timed_together() -> None:
    calls_made: list[str] = []
    found = interleaved({"a": FakeCall("a", [0.01] * 100, calls_made)}, 2, clock)
    assert calls_made.count("a") == 1 + 2 * 5  # 50 ms a sample
    assert found["a"][0].wall == pytest.approx(0.01)  # of one call
    assert (calls_of(10.0), calls_of(1e-9)) == (1, MOST_CALLS)


def test_the_ratio_is_the_median_of_rounds_with_quartiles() -> None:
    found = ratio([2.0, 1.0, 9.0, 1.5, 2.5], [2.0, 2.0, 1.0, 1.0, 1.0])  # 1, 0.5, 9, 1.5, 2.5
    assert found == Ratio(1.5, 1.0, 2.5)
    assert ratio([3.0], [2.0]) == Ratio(1.5, 1.5, 1.5)
