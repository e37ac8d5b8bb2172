"""Estimate the progress of a comparison from the times of its finished cells.

The time of a cell is estimated from finished cells of the same task and length, else from the same task at other
lengths, else from any cell, in proportion to the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

Slot = tuple[str, int]
"""Task and length of a cell."""

ProgressCallback = Callable[[float, str], None]
"""Called with the completed fraction of the work and a description of the current step."""


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

    def begin(self, doing: str) -> None:
        """Start the next cell."""
        self.doing, self.requests = doing, 0
        self.show(0.0)

    def on_request(self) -> None:
        """Count one more scored request of this cell."""
        self.requests += 1
        expected = self.requests_of.get(self.todo[0][0], 2 * self.requests)  # of an unknown task, half is always left
        self.show(min(1.0, self.requests / expected))

    def end(self, seconds: float, done: bool = True) -> None:
        """Finish a cell; the times of refused and failed cells are not used for estimates."""
        slot = self.todo.pop(0)
        self.spent += seconds
        if done:
            self.known.append((slot, seconds))
            self.requests_of[slot[0]] = max(1, self.requests)
        self.show(0.0)

    def show(self, within: float) -> None:
        """Report the completed fraction, which never falls, even where an estimate was too low."""
        current = within * self.estimate(self.todo[0]) if self.todo else 0.0
        left = sum(map(self.estimate, self.todo)) - current
        done = self.spent + current
        self.shown = max(self.shown, done / (done + left) if done + left else 0.0)
        self.report(self.shown, self.doing)

    def estimate(self, slot: Slot) -> float:
        """Estimate the seconds a cell will take."""
        task, length = slot
        same = [seconds for other, seconds in self.known if other == slot]
        if same:
            return median(same)
        similar = [(n, s) for (other, n), s in self.known if other == task] or [(n, s) for (_, n), s in self.known]
        rate = median(s / n for n, s in similar) if similar else 1e-3  # arbitrary: only proportions matter at first
        return rate * length
