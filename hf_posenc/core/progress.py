"""Callbacks that long computations report their progress to."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[float, str], None]
"""Called with the completed fraction of the work, 0 … 1, and a description of the current step."""

OpenProgressCallback = Callable[[float | None, str], None]
"""The same for work whose length may be unknown; the fraction is then None."""

StepCallback = Callable[[str], None]
"""Called with a description of the current step alone."""


def part_of(progress: ProgressCallback, start: float, share: float, prefix: str = "") -> ProgressCallback:
    """The progress of a part of the work, which begins at the fraction ``start`` of all and is ``share`` of it."""
    return lambda done, doing: progress(start + share * done, f"{prefix}{doing}")
