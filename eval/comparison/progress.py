"""How far a comparison is, judged by the time its cells took.

A cell's time is estimated by the cells of the same task and length that are finished, else by the same task at another
length, else by any cell, in proportion to the length. What is left is known ever better as cells finish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

Slot = tuple[str, int]
"""Task and length of a cell."""


class RemainingTime:
    """Share of the work that is done.

    Args:
        todo: cells that have to be measured, in their order.
        known: seconds of cells that an earlier run has finished.
        tell: called with the share and what is going on.
    """

    def __init__(
        self, todo: Sequence[Slot], known: Sequence[tuple[Slot, float]], tell: Callable[[float, str], None]
    ) -> None:
        self.todo, self.known, self.tell = list(todo), list(known), tell
        self.spent, self.shown, self.doing = 0.0, 0.0, ""
        self.ticks = 0
        self.ticks_of: dict[str, int] = {}

    def begin(self, doing: str) -> None:
        """Start the next cell."""
        self.doing, self.ticks = doing, 0
        self.show(0.0)

    def tick(self) -> None:
        """One more request of this cell is answered."""
        self.ticks += 1
        expected = self.ticks_of.get(self.todo[0][0], 2 * self.ticks)  # of a task never seen, half is always left
        self.show(min(1.0, self.ticks / expected))

    def end(self, seconds: float, done: bool = True) -> None:
        """Finish a cell; what a refused or failed one took says nothing about the others."""
        slot = self.todo.pop(0)
        self.spent += seconds
        if done:
            self.known.append((slot, seconds))
            self.ticks_of[slot[0]] = max(1, self.ticks)
        self.show(0.0)

    def show(self, within: float) -> None:
        """Tell the share; it never falls, even where an estimate turns out to have been too good."""
        current = within * self.estimate(self.todo[0]) if self.todo else 0.0
        left = sum(map(self.estimate, self.todo)) - current
        done = self.spent + current
        self.shown = max(self.shown, done / (done + left) if done + left else 0.0)
        self.tell(self.shown, self.doing)

    def estimate(self, slot: Slot) -> float:
        """Seconds a cell will take."""
        task, length = slot
        same = [seconds for other, seconds in self.known if other == slot]
        if same:
            return median(same)
        alike = [(n, s) for (other, n), s in self.known if other == task] or [(n, s) for (_, n), s in self.known]
        rate = median(s / n for n, s in alike) if alike else 1e-3  # a start; only proportions matter until a cell ends
        return rate * length
