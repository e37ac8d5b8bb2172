"""Estimate the progress of a comparison from the times of its finished cells.

    seconds(scheme, task, length) ≈ seconds(task, length) · pace(scheme)

Both are fitted to the finished cells by medians, in turns (median polish: Tukey 1977, "Exploratory Data Analysis"). For
a length without any, the nearest one is scaled as the task's times have grown between other lengths, or in proportion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from statistics import median
from typing import NamedTuple, TypeVar

from hf_posenc.core.progress import ProgressCallback

POLISHES = 10
K = TypeVar("K")


class Slot(NamedTuple):
    """What the time of a cell depends on."""

    task: str
    length: int
    scheme: str


def part_of(progress: ProgressCallback, start: float, share: float, prefix: str = "") -> ProgressCallback:
    """The progress of a part of the work, which begins at the fraction ``start`` of all and is ``share`` of it."""
    return lambda done, doing: progress(start + share * done, f"{prefix}{doing}")


class RemainingTime:
    """Completed fraction of the work.

    Args:
        todo: cells that have to be measured, in order.
        known: seconds of cells that an earlier run has finished.
        report: called with the completed fraction and a description of the current step.
    """

    def __init__(self, todo: Sequence[Slot], known: Sequence[tuple[Slot, float]], report: ProgressCallback) -> None:
        self.todo, self.known, self.report = list(todo), list(known), report
        self.spent, self.shown, self.doing = 0.0, 0.0, ""
        self.requests = 0
        self.requests_of: dict[str, int] = {}
        self.expected: list[float] = []

    def begin(self, doing: str) -> None:
        """Start the next cell."""
        self.doing, self.requests = doing, 0
        self.expected = Estimates(self.known).seconds(self.todo)
        self.show(0.0)

    def on_request(self) -> None:
        """Count one more scored request of this cell."""
        self.requests += 1
        expected = self.requests_of.get(self.todo[0].task, 2 * self.requests)  # of an unknown task, half is always left
        self.show(min(1.0, self.requests / expected))

    def end(self, seconds: float, done: bool = True) -> None:
        """Finish a cell; the times of refused and failed cells are not used for estimates."""
        slot = self.todo.pop(0)
        self.spent += seconds
        if done:
            self.known.append((slot, seconds))
            self.requests_of[slot.task] = max(1, self.requests)
        self.expected = Estimates(self.known).seconds(self.todo)
        self.show(0.0)

    def show(self, within: float) -> None:
        """Report the completed fraction, which never falls, even where an estimate was too low."""
        current = within * self.expected[0] if self.expected else 0.0
        left = sum(self.expected) - current
        done = self.spent + current
        self.shown = max(self.shown, done / (done + left) if done + left else 0.0)
        self.report(self.shown, self.doing)


class Estimates:
    """Expected times of cells, from those of finished ones."""

    def __init__(self, known: Sequence[tuple[Slot, float]]) -> None:
        self.known = [(slot, seconds) for slot, seconds in known if seconds > 0]
        self.paces: dict[str, float] = {}
        for _ in range(POLISHES):
            self.times = self.medians(lambda slot: (slot.task, slot.length), lambda slot: self.pace(slot.scheme))
            self.paces = self.medians(lambda slot: slot.scheme, lambda slot: self.times[slot.task, slot.length])
        self.rate = median(seconds / slot.length for slot, seconds in self.known) if self.known else 1e-3

    def medians(self, group: Callable[[Slot], K], unit: Callable[[Slot], float]) -> dict[K, float]:
        """The median of the finished times of each group, each in its own unit."""
        found: dict[K, list[float]] = {}
        for slot, seconds in self.known:
            found.setdefault(group(slot), []).append(seconds / unit(slot))
        return {key: median(values) for key, values in found.items()}

    def pace(self, scheme: str) -> float:
        """How much longer a scheme takes than others; 1 where nothing is known."""
        return self.paces.get(scheme, 1.0)

    def seconds(self, slots: Sequence[Slot]) -> list[float]:
        """Expected seconds of each cell."""
        return [self.usual(slot.task, slot.length) * self.pace(slot.scheme) for slot in slots]

    def usual(self, task: str, length: int) -> float:
        """Expected seconds of a task at a length, whatever the scheme."""
        times = {n: seconds for (name, n), seconds in self.times.items() if name == task}
        if length in times:
            return times[length]
        if not times:
            return self.rate * length  # without any finished cell, only proportions matter
        nearest = min(times, key=lambda n: abs(log(n / length)))
        return times[nearest] * (length / nearest) ** growth(times)


def growth(times: Mapping[int, float]) -> float:
    """The power of the length that times grow with, between the shortest and longest; 1 for a single one."""
    first, last = min(times), max(times)
    if first == last:
        return 1.0
    return min(2.0, max(0.0, log(times[last] / times[first]) / log(last / first)))
