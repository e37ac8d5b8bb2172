"""Progress of a comparison: a cell counts as many times as it has tokens of context."""

from __future__ import annotations

from collections.abc import Sequence

from hf_posenc.core.progress import ProgressCallback


def part_of(progress: ProgressCallback, start: float, share: float, prefix: str = "") -> ProgressCallback:
    """The progress of a part of the work, which begins at the fraction ``start`` of all and is ``share`` of it."""
    return lambda done, doing: progress(start + share * done, f"{prefix}{doing}")


class CellProgress:
    """Completed fraction of cells to be measured, by the lengths of all and by the requests of the current one.

    Args:
        lengths: of the cells, in order.
        report: called with the completed fraction and a description of the current step.
    """

    def __init__(self, lengths: Sequence[int], report: ProgressCallback) -> None:
        self.lengths, self.report = list(lengths), report
        self.total, self.done, self.doing, self.requests = sum(lengths), 0, "", 0

    def begin(self, doing: str) -> None:
        """Start the next cell."""
        self.doing, self.requests = doing, 0
        self.report(self.done / self.total, doing)

    def on_request(self) -> None:
        """Count one more scored request of this cell; how many there will be is not known, so half is always left."""
        self.requests += 1
        within = 1 - 0.5 ** (self.requests / 32)
        self.report((self.done + within * self.lengths[0]) / self.total, self.doing)

    def end(self) -> None:
        """Finish a cell."""
        self.done += self.lengths.pop(0)
        self.report(self.done / self.total, self.doing)
