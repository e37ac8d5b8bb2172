"""Callbacks that long computations report their progress to."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[float, str], None]
"""Callback with the completed fraction of the work, 0 … 1, and a description of the current step."""

OpenProgressCallback = Callable[[float | None, str], None]
"""Like `ProgressCallback`; the fraction is None if the length of the work is unknown."""

StepCallback = Callable[[str], None]
"""Callback with a description of the current step."""


def part_of(progress: ProgressCallback, start: float, share: float, prefix: str = "") -> ProgressCallback:
    """Callback for a part of the work that begins at the fraction ``start`` and is ``share`` of all work."""
    return lambda done, step: progress(start + share * done, f"{prefix}{step}")
