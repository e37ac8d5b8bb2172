"""Whether other processes disturbed a benchmark, and on which processors it may run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from statistics import median

from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.bench.cell import BenchCell

WAITED = 1.1  # wall time over processor time of one thread; an undisturbed one has 1.00 to 1.02


def waiting(cells: Iterable[BenchCell]) -> float | None:
    """Wall time over processor time, median of all samples; above 1 the process waited. None without a sample."""
    found = [
        t.wall / t.processor for c in cells for measured in c.models.values() for t in measured.times if t.processor > 0
    ]
    return median(found) if found else None


def busy_remark(cells: Sequence[BenchCell], threads: int, device: str) -> list[str]:
    """A remark where the processor was shared. Several threads, and an accelerator, do not show it by their times."""
    if threads != 1 or device != "cpu" or (waited := waiting(cells)) is None or waited < WAITED:
        return []
    return [
        f"The processor was busy with other work: wall time was {waited:.2f} times the processor time. "
        "Trust the ratios of CPU time, or run again when it is idle."
    ]


def allowed_cpus() -> list[int] | None:
    """Processors that this process may run on, where the system tells."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def pin(cpus: Sequence[int], threads: int) -> None:
    """Let this process run on some processors only, so that it is not moved while it is timed.

    Raises:
        OptionOutOfRange: there are not these processors, fewer than threads, or the system has no such call.
    """
    allowed = allowed_cpus()
    if allowed is None:
        raise OptionOutOfRange("This system cannot tie a process to processors. Leave --cpus out.")
    if len(set(cpus)) < threads or not set(cpus) <= set(allowed):
        raise OptionOutOfRange(
            f"--cpus takes at least {threads} of the processors {', '.join(map(str, allowed))}, got "
            f"{', '.join(map(str, cpus))}. Name as many as --threads."
        )
    os.sched_setaffinity(0, set(cpus))
