"""Sections of a scheme's page with measurements from committed results: leaderboard, findings, costs, properties."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from docstrings import prose, table
from properties import PROPERTIES, PropertyValue

from hf_posenc.core.record import SchemeRecord
from hf_posenc.eval.report.phrases import is_share, task_title
from hf_posenc.schemes.registry import list_schemes

DOCS = Path(__file__).parents[1]


def evidence(record: SchemeRecord) -> str:
    """Sections with the rows of the leaderboard, the claims of findings, and costs."""
    parts = ["## Measured\n", *leaderboard_tables(record), findings_table(record), cost_table(record)]
    return "\n".join(part for part in parts if part)


def leaderboard_tables(record: SchemeRecord) -> Iterator[str]:
    """Yield a table of scores for each model of the leaderboard, or a sentence on why there is none."""
    rows = [row for row in leaderboard() if row["scheme"] == record.name]
    if not rows:
        reason = {"recipe": " (a training recipe)", "training": " (it needs training)"}.get(record.use, "")
        yield f"No row in the [leaderboard](../leaderboard.md){reason}.\n"
        return
    yield INTRODUCTION
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        lengths = list(dict.fromkeys(row["length"] for row in own))
        lines = []
        for task in dict.fromkeys(row["task"] for row in own):
            scores = {row["length"]: row for row in own if row["task"] == task}
            last = scores[lengths[-1]]
            rank = f"{last['rank_first']}–{last['rank_last']} of {last['rank_of']}"
            lines.append([task_title(task), rank, *(score(scores[n]) if n in scores else "—" for n in lengths)])
        yield f"{model}:\n\n{table(['task', 'rank', *(f'{int(n):,} tokens' for n in lengths)], lines)}"


def score(row: dict[str, str]) -> str:
    """Format as ``3.012 (2.801–3.223)``, shares in percent."""
    factor, digits = (100, ".0f") if is_share(row["metric"]) else (1, ".3f")
    value, low, high = (f"{factor * float(row[name]):{digits}}" for name in ("value", "low", "high"))
    return f"{value} ({low}–{high})"


def cost_table(record: SchemeRecord) -> str:
    """Section with time and memory on the models of the leaderboard; they do not depend on the task."""
    measured = {r["model"]: r for r in leaderboard() if r["scheme"] == record.name and r["prefill_time_ratio"]}
    rows = [
        (model, ratio(row, "prefill"), ratio(row, "decode"), rounded(row["prefill_memory_ratio"]),
         f"{float(row['cache_bytes_per_token']):,.0f} B" if row["cache_bytes_per_token"] else "—")
        for model, row in measured.items()
    ]  # fmt: skip
    if not rows:
        return ""
    return f"## Cost\n\n{OF_COSTS}\n{table(('model', 'prefill', 'decode', 'memory', 'cache/token'), rows)}"


def ratio(row: dict[str, str], case: str) -> str:
    """Format as ``1.21 (1.18–1.25)``: median and quartiles."""
    median, low, high = (rounded(row[f"{case}_{name}"]) for name in ("time_ratio", "low", "high"))
    return f"{median} ({low}–{high})" if row[f"{case}_time_ratio"] else "—"


def rounded(value: str) -> str:
    """Format a number with two decimals; an empty text as a dash."""
    return f"{float(value):.2f}" if value else "—"


def findings_table(record: SchemeRecord) -> str:
    """Table of the claims of published findings that compare this scheme."""
    rows = [
        (f"[{name}](../findings.md)", prose(one["says"]), signed(one["gain"]), interval(one), one["outcome"])
        for name, entry in findings().items()
        for one in entry["claims"]
        if record.name in schemes_of(one["claim"])
    ]
    return table(("finding", "claim", "gain", "95 % interval", ""), rows) if rows else ""


def schemes_of(claim: dict[str, Any]) -> set[str]:
    """Schemes that a claim compares: names of its variants before a comma; ``rope+randpos`` names two schemes."""
    named = {part for value in claim.values() if isinstance(value, str) for part in value.partition(",")[0].split("+")}
    return named & scheme_names()


def interval(claim: dict[str, Any]) -> str:
    """Format as ``−0.005 … +0.206``."""
    return " … ".join(signed(claim[bound]) for bound in ("low", "high") if claim[bound] is not None)


def properties(record: SchemeRecord) -> str:
    """Section with the stored properties of a scheme, and the meaning of each number."""
    parts = ["## Properties\n", f"```console\n$ python examples/lessons/properties {record.name}\n```\n"]
    for name, row in stored_properties().items():
        base, _, layer = name.partition(" (")
        if base == record.name:
            rows = [(PROPERTIES[key].question, answer(cell), prose(cell["says"])) for key, cell in row.items()]
            parts.append(table((layer.rstrip(")") or "property", "", "the number"), rows))
    return "\n".join(parts) if len(parts) > 2 else ""


def answer(cell: dict[str, Any]) -> str:
    """Format a stored value as `python examples/lessons/properties` does."""
    value = None if cell["value"] is None else float(cell["value"])
    return prose(str(PropertyValue(cell["holds"], value, cell["says"], cell["note"])))


@lru_cache(maxsize=1)
def leaderboard() -> list[dict[str, str]]:
    """The rows of the committed leaderboard at four times the trained length."""
    with (DOCS / "leaderboard.csv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["board"] == "4x"]


def signed(value: float) -> str:
    """Format a gain with its sign."""
    return f"{value:+.3f}"


def findings() -> dict[str, Any]:
    """The committed findings."""
    return json.loads((DOCS / "findings.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def stored_properties() -> dict[str, Any]:
    """The committed properties, which docs/make_properties.py wrote."""
    return json.loads((DOCS / "properties.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def scheme_names() -> frozenset[str]:
    """Names of all schemes."""
    return frozenset(record.name for record in list_schemes())


INTRODUCTION = """On the bundled models, patched once for the longest length, without training; means over documents
with 95 % intervals. How to read the columns: [leaderboard](../leaderboard.md).
"""
OF_COSTS = """At the longest length of the [leaderboard](../leaderboard.md), as ratios to the unpatched model: median
time and quartiles of a forward pass and of a step of generation, and peak memory above the weights.
"""
