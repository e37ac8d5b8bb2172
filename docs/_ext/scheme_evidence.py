"""What was measured of a scheme, from the committed results: leaderboard, findings, costs, properties."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from docstrings import prose, table

from hf_posenc.core.record import SchemeRecord
from hf_posenc.eval.report.phrases import model_title, task_title
from hf_posenc.insight.leaderboard import Leaderboard, read_leaderboard
from hf_posenc.insight.leaderboard.words import cells, columns
from hf_posenc.insight.properties import PROPERTIES, PropertyValue
from hf_posenc.schemes.registry import list_schemes

DOCS = Path(__file__).parents[1]
OMITTED = ("scheme", "kind")  # columns of a leaderboard that are the same in all rows of one scheme
OF_COST = ("prefill", "decode", "memory", "cache/token")


def evidence(record: SchemeRecord) -> str:
    """Sections with the rows of the leaderboard, the claims of findings, and costs."""
    parts = ["## Measured\n", *leaderboard_tables(record), findings_table(record), cost_table(record)]
    return "\n".join(part for part in parts if part)


def leaderboard_tables(record: SchemeRecord) -> Iterator[str]:
    """A table of scores for each model of the leaderboard, or why there is none."""
    models = leaderboard().about["models"]
    if not any(line.scheme == record.name for line in leaderboard().lines):
        reasons = dict.fromkeys(model["left_out"].get(record.name, "") for model in models)
        said = "; ".join(filter(None, reasons))
        yield f"No row in the [leaderboard](../leaderboard.md){f' ({said})' if said else ''}.\n"
        return
    yield INTRODUCTION
    for model in models:
        if rows := rows_of(record, model, drop=OF_COST):
            yield f"{model_title(model['name'])}:\n\n{table(list(rows[0]), [list(row.values()) for row in rows])}"


def cost_table(record: SchemeRecord) -> str:
    """Section with time and memory on the models of the leaderboard."""
    models = leaderboard().about["models"]
    rows = [
        {"model": model_title(model["name"])} | {name: row[name] for name in OF_COST if name in row}
        for model in models
        for row in rows_of(record, model, drop=())[:1]  # the same for every task
    ]
    if not rows:
        return ""
    return f"## Cost\n\n{OF_COSTS}\n{table(list(rows[0]), [list(row.values()) for row in rows])}"


def rows_of(record: SchemeRecord, model: dict[str, Any], *, drop: tuple[str, ...]) -> list[dict[str, str]]:
    """Cells of every task of a model by column, without the columns ``drop``."""
    lines = [line for line in leaderboard().lines if line.model == model["name"]]
    names = columns(model, lines)
    found = []
    for line in lines:
        if line.scheme == record.name:
            row = {"task": task_title(line.task)} | dict(zip(names, cells(line, lines), strict=True))
            found.append({name: cell for name, cell in row.items() if name not in (*OMITTED, *drop)})
    return found


def findings_table(record: SchemeRecord) -> str:
    """Claims of published findings in which a scheme is one of the variants."""
    rows = [
        (f"[{name}](../findings.md)", prose(one["says"]), signed(one["gain"]), interval(one), one["outcome"])
        for name, entry in findings().items()
        for one in entry["claims"]
        if record.name in schemes_of(one["claim"])
    ]
    return table(("finding", "claim", "gain", "95 % interval", ""), rows) if rows else ""


def schemes_of(claim: dict[str, Any]) -> set[str]:
    """The schemes that a claim compares: its variants up to a comma, ``rope+randpos`` for both."""
    named = {part for value in claim.values() if isinstance(value, str) for part in value.partition(",")[0].split("+")}
    return named & scheme_names()


def interval(claim: dict[str, Any]) -> str:
    """Format as ``−0.005 … +0.206``."""
    return " … ".join(signed(claim[bound]) for bound in ("low", "high") if claim[bound] is not None)


def properties(record: SchemeRecord) -> str:
    """Section with the stored properties of a scheme, and what each number is."""
    parts = ["## Properties\n", f"```console\n$ hf-posenc info {record.name} --properties\n```\n"]
    for name, row in stored_properties().items():
        base, _, layer = name.partition(" (")
        if base == record.name:
            rows = [(PROPERTIES[key].question, answer(cell), prose(cell["says"])) for key, cell in row.items()]
            parts.append(table((layer.rstrip(")") or "property", "", "the number"), rows))
    return "\n".join(parts) if len(parts) > 2 else ""


def answer(cell: dict[str, Any]) -> str:
    """A stored cell as `hf-posenc info --properties` shows it."""
    value = None if cell["value"] is None else float(cell["value"])
    return prose(str(PropertyValue(cell["holds"], value, cell["says"], cell["note"])))


@lru_cache(maxsize=1)
def leaderboard() -> Leaderboard:
    """The committed leaderboard."""
    return read_leaderboard(DOCS / "leaderboard" / "leaderboard.json")


@lru_cache(maxsize=1)
def signed(value: float) -> str:
    """A gain with its sign."""
    return f"{value:+.3f}"


def findings() -> dict[str, Any]:
    """The committed findings."""
    return json.loads((DOCS / "findings.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def stored_properties() -> dict[str, Any]:
    """The committed properties: what docs/make_properties.py wrote."""
    return json.loads((DOCS / "properties.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def scheme_names() -> frozenset[str]:
    """Names of all schemes."""
    return frozenset(record.name for record in list_schemes())


INTRODUCTION = """On the bundled models, patched once for the longest length, without training; means over documents
with 95 % intervals. How to read the columns, and the command of every cell: [leaderboard](../leaderboard.md).
"""
OF_COSTS = """At the longest length of the [leaderboard](../leaderboard.md), as ratios to the unpatched model: median
time and quartiles of a forward pass and of a step of generation, and peak memory above the weights.
"""
