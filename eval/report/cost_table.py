"""Costs of a comparison as a table with a line for each scheme."""

from __future__ import annotations

from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.record import costs_of

TITLE = "Costs: time of all cells, peak memory, KV cache"


def cost_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Column heads and rows: the costs of every scheme, those of its finished cells together."""
    lines = []
    for label in comparison.labels:
        if not (records := comparison.done(label)):
            continue
        costs = costs_of(records)
        peak, cache = costs.peak_memory, costs.cache_per_token
        lines.append([
            label, f"{sum(record.seconds for record in records):.1f} s",
            "" if peak is None else f"{peak / 2**20:,.0f} MiB ({costs.memory_of})",
            "" if cache is None else f"{cache:,.0f} bytes",
        ])  # fmt: skip
    return ["scheme", "time", "peak memory", "cache per token"], lines
