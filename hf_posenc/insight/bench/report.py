"""Format a benchmark as text: one table per case, and notes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from hf_posenc.insight.bench.cell import BenchCell
from hf_posenc.insight.bench.timing import Ratio
from hf_posenc.insight.bench.variants import NAIVE, PATCHED, UNPATCHED

NONE = "—"
MIB = 2**20
WAITED = 1.1  # wall time over processor time of one thread; an undisturbed one has 1.00 to 1.02
PROCESSOR = {UNPATCHED: ("CPU time",)}  # steadier than time on a busy machine; of naive forms the times differ anyway
ONE_TOKEN = ("decode", "static_decode")
TITLES = {
    "prefill": "prefill: a text is read",
    "decode": "decode: one token is read behind a cached text",
    "static_decode": "decode: one token is read behind a text in a cache of fixed size (StaticCache)",
    "train": "train: forward and backward",
}


def table(cells: Sequence[BenchCell], case: str) -> tuple[list[str], list[list[str]]]:
    """Column heads and lines of a case."""
    mine = [cell for cell in cells if cell.case == case]
    roles = [role for role in (UNPATCHED, NAIVE) if any(role in cell.models for cell in mine)]
    heads = ["scheme", "tokens", "ms/token" if case in ONE_TOKEN else "ms", "tokens/s", "MiB"]
    for role in roles:
        heads += [f"{what} / {role}" for what in ("time", *PROCESSOR.get(role, ()), "MiB")]
    return heads, [line(cell, roles) for cell in mine]


def line(cell: BenchCell, roles: Sequence[str]) -> list[str]:
    """A cell as a line of its table."""
    ours = cell.models.get(PATCHED)
    found = [cell.scheme, f"{cell.length:,}", *time_columns(cell)]
    found.append(NONE if ours is None or ours.memory is None else f"{ours.memory / MIB:.1f}")
    for role in roles:
        memory = cell.memory_ratio(role)
        clocks = ["wall", *("processor" for _ in PROCESSOR.get(role, ()))]
        found += [spread(cell.time_ratio(role, clock)) for clock in clocks]
        found.append(NONE if memory is None else f"{memory:.2f}")
    return found


def time_columns(cell: BenchCell) -> list[str]:
    """Time of a call in the median round, and tokens a second."""
    ours = cell.models.get(PATCHED)
    if ours is None or not ours.times:
        return [NONE, NONE]
    seconds = sorted(t.wall for t in ours.times)[len(ours.times) // 2]
    return [f"{1000 * seconds:.4g}", f"{cell.tokens / seconds:,.0f}"]


def spread(found: Ratio | None) -> str:
    """``1.02 (0.99–1.05)``: the median of paired ratios, and its quartiles."""
    return NONE if found is None else f"{found.median:.3g} ({found.low:.3g}–{found.high:.3g})"


def busy_remark(cells: Sequence[BenchCell], threads: int, device: str) -> list[str]:
    """A remark where other processes disturbed the run. Several threads, and a GPU, do not show it by their times."""
    waits = [
        t.wall / t.processor for c in cells for measured in c.models.values() for t in measured.times if t.processor > 0
    ]
    if threads != 1 or device != "cpu" or not waits or (waited := median(waits)) < WAITED:
        return []
    return [
        f"The processor was busy with other work: wall time was {waited:.2f} times the processor time. "
        "Trust the ratios of CPU time, or run again when it is idle."
    ]


def remarks(cells: Sequence[BenchCell]) -> list[str]:
    """Notes that explain dashes, each once."""
    notes = []
    for cell in cells:
        where = f"{cell.scheme}, {cell.case}, {cell.length:,} tokens"
        if cell.why_not:
            notes.append(f"{where}: {cell.state}: {cell.why_not}")
        notes += [f"{where}: no {role}: {found.why_not}" for role, found in cell.models.items() if found.why_not]
    return notes


def to_dict(cells: Sequence[BenchCell], about: dict[str, Any]) -> dict[str, Any]:
    """Plain values for JSON: settings, and every round of every cell."""
    return {"about": about, "cells": [cell.to_dict() for cell in cells]}
