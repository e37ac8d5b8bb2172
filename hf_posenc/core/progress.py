"""Types of the callbacks that long computations report their progress to."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[float, str], None]
"""Called with the completed fraction of the work, 0 … 1, and a description of the current step."""

OpenProgressCallback = Callable[[float | None, str], None]
"""The same for work whose length may be unknown; the fraction is then None."""

StepCallback = Callable[[str], None]
"""Called with a description of the current step alone."""
