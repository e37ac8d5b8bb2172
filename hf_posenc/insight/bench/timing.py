"""Paired, interleaved timing: everything runs once per round, in one process, and each round in the reverse order.

    ratio = median over rounds of (time of one / time of the other, in the same round)

Other load on the machine, and its clock rate, then affect both sides of a ratio equally; what one side leaves in the
processor's caches affects the other in half of the rounds only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Protocol

SHORTEST = 0.05  # seconds of a sample: below, the clock and the scheduler show
MOST_CALLS = 64


class Timed(Protocol):
    """A callable to be timed."""

    def reset(self) -> None:
        """Restore the state before the next sample; not timed."""

    def call(self) -> None:
        """The timed call."""


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


def cpu_clock(run: Callable[[], None]) -> Elapsed:
    """Run a callable and return its time."""
    wall, processor = time.perf_counter(), time.process_time()
    run()
    return Elapsed(time.perf_counter() - wall, time.process_time() - processor)


def calls_of(seconds: float) -> int:
    """Number of calls per sample, from the seconds of one."""
    return max(1, min(MOST_CALLS, round(SHORTEST / max(seconds, 1e-9))))


def interleaved(
    timed_calls: Mapping[str, Timed],
    rounds: int,
    clock: Clock = cpu_clock,
    progress: Callable[[int], None] = lambda number: None,
) -> dict[str, list[Elapsed]]:
    """Measure the time of one call of each callable in each round.

    Args:
        timed_calls: by name; each runs once before anything is timed, to choose the number of calls per sample.
        rounds: how many; the order is reversed from one to the next.
        clock: times a sample.
        progress: called with the number of a round when it is done.
    """
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
