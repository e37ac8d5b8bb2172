"""Costs of a comparison: ``costs.csv``, with a line for each cell, and a table with a line for each scheme."""

from __future__ import annotations

import csv
import io

from hf_posenc.eval.report.spreadsheet import escape_formula
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.costs import costs_by_scheme

TITLE = "Costs: time of all cells, peak memory, KV cache"
COLUMNS = (
    "model", "scheme", "task", "length", "seconds", "peak_memory_bytes", "memory_of", "cache_bytes_per_token",
)  # fmt: skip


def cost_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Column heads and rows: the costs of every scheme, those of its finished cells together."""
    lines = [
        [
            one.label, f"{one.seconds:.1f} s",
            "" if one.peak_memory is None else f"{one.peak_memory / 2**20:,.0f} MiB ({one.memory_of})",
            "" if one.cache_per_token is None else f"{one.cache_per_token:,.0f} bytes",
        ]
        for one in costs_by_scheme(comparison.records, comparison.costs)
    ]  # fmt: skip
    return ["scheme", "time", "peak memory", "cache per token"], lines


def costs_csv(comparison: Comparison) -> str:
    """Format as CSV: one line per finished cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for record in comparison.with_state("done"):
        names = (comparison.model_of(record.scheme), record.scheme, record.task)
        costs = comparison.costs.get(record.key)
        values = (costs.peak_memory, costs.memory_of, costs.cache_per_token) if costs else (None, "", None)
        writer.writerow([*map(escape_formula, names), record.length, f"{record.seconds:.3f}", *values])
    return file.getvalue()
