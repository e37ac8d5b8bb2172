"""Costs of a comparison as a table with a line for each scheme."""

from __future__ import annotations

from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.costs import costs_by_scheme

TITLE = "Costs: time of all cells, peak memory, KV cache"


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
