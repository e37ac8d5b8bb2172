"""Durations: parse ``10m`` and ``1h30m``, and write seconds in words."""

from __future__ import annotations

import re
from math import ceil

from hf_posenc.errors import OptionOutOfRange, shown

DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


def seconds_of(budget: str | float) -> float:
    """``"10m"``, ``"1h30m"``, ``"90s"`` or a number of seconds, in seconds.

    Raises:
        OptionOutOfRange: it is no duration above zero.
    """
    found = DURATION.fullmatch(str(budget).strip().lower()) if not isinstance(budget, bool) else None
    hours, minutes, seconds = (float(part or 0) for part in found.groups()) if found else (0.0, 0.0, 0.0)
    total = 3600 * hours + 60 * minutes + seconds
    if total <= 0:
        raise OptionOutOfRange(f"A budget is a duration such as 10m, 90s or 1h30m, got {shown(budget)}. Pass one.")
    return total


def duration(seconds: float) -> str:
    """Seconds in words: ``0.4 s``, ``45 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def round_up(seconds: float) -> str:
    """A budget of at least so many seconds, as it is typed."""
    return f"{ceil(seconds)}s" if seconds < 60 else f"{ceil(seconds / 60)}m"
