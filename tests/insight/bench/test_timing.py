"""Paired rounds: order, what is timed, and ratios, with emulated clocks and calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hf_posenc.insight.bench.devices import MOST_CALLS, Elapsed, Ratio, calls_of, interleaved, ratio


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
