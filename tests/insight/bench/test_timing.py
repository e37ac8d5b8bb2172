"""Paired rounds: the order, what is timed, and what the ratio is, with clocks and subjects made up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hf_posenc.insight.bench.timing import (
    MOST_CALLS,
    Elapsed,
    Ratio,
    calls_of,
    interleaved,
    ratio,
)


class Made:
    """Takes as long as it says, on a clock that moves only when it is called."""

    seconds = 0.0

    def __init__(self, name: str, costs: list[float], said: list[str]) -> None:
        self.name, self.costs, self.said = name, iter(costs), said

    def reset(self) -> None:
        self.said.append(f"reset {self.name}")
        Made.seconds += 1000.0  # would show if it were counted

    def call(self) -> None:
        self.said.append(self.name)
        Made.seconds += next(self.costs)


def clock(run: Callable[[], None]) -> Elapsed:
    before = Made.seconds
    run()
    return Elapsed(Made.seconds - before, 2 * (Made.seconds - before))


def test_every_round_runs_in_the_reverse_order_of_the_one_before() -> None:
    said: list[str] = []
    timed_calls = {name: Made(name, [1.0] * 5, said) for name in "abc"}
    interleaved(timed_calls, 4, clock)
    calls = [word for word in said if not word.startswith("reset")]
    assert calls == [*"abc", *"abc", *"cba", *"abc", *"cba"]  # the first three are not timed
    assert said[0::2] == [f"reset {name}" for name in calls]


def test_a_machine_that_slows_down_does_not_affect_the_ratio() -> None:
    drift = [1.0, 1.0, 2.0, 4.0, 8.0, 16.0]
    slow, fast = Made("slow", [3 * x for x in drift], []), Made("fast", drift, [])
    found = interleaved({"slow": slow, "fast": fast}, 5, clock)
    assert [t.wall for t in found["fast"]] == drift[1:]
    wall = [[t.wall for t in found[name]] for name in ("slow", "fast")]
    assert ratio(*wall) == Ratio(3.0, 3.0, 3.0)
    assert max(wall[0]) / min(wall[1]) == 48.0  # control: what unpaired times could say
    assert [t.processor for t in found["fast"]] == [2 * x for x in drift[1:]]


def test_short_calls_are_timed_together() -> None:
    said: list[str] = []
    found = interleaved({"a": Made("a", [0.01] * 100, said)}, 2, clock)
    assert said.count("a") == 1 + 2 * 5  # 50 ms a sample
    assert found["a"][0].wall == pytest.approx(0.01)  # of one call
    assert (calls_of(10.0), calls_of(1e-9)) == (1, MOST_CALLS)


def test_the_ratio_is_the_median_of_rounds_with_quartiles() -> None:
    found = ratio([2.0, 1.0, 9.0, 1.5, 2.5], [2.0, 2.0, 1.0, 1.0, 1.0])  # 1, 0.5, 9, 1.5, 2.5
    assert found == Ratio(1.5, 1.0, 2.5)
    assert ratio([3.0], [2.0]) == Ratio(1.5, 1.5, 1.5)


def test_rounds_are_reported() -> None:
    reported: list[int] = []
    interleaved({"a": Made("a", [1.0] * 9, [])}, 3, clock, reported.append)
    assert reported == [1, 2, 3]
