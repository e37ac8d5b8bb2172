"""Write the files of a comparison: one table, one page, and the numbers they are made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.core.files.staged import staged
from hf_posenc.eval.errors import StoreUnusable
from hf_posenc.eval.report.page import page_html
from hf_posenc.eval.report.phrases import task_title, title
from hf_posenc.eval.report.remarks import method, remarks, verdict
from hf_posenc.eval.report.tables import Table, legend, metric_tables, summaries
from hf_posenc.eval.results.comparison import Comparison, interval
from hf_posenc.eval.results.ranking import results_of

COLUMNS = (
    "model", "scheme", "task", "length", "depth", "metric", "value", "stderr", "low", "high", "n", "note", "clusters",
    "against", "difference", "difference_low", "difference_high", "p_holm", "verdict",
)  # fmt: skip
EXPORTS = ("results.json", "results.csv", "results.md", "documents.jsonl", "page.html")
COUNTS = ("length", "n", "clusters")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""First characters of cells that a spreadsheet would run as formulas."""


def write_exports(folder: Path, comparison: Comparison) -> None:
    """Write all files of `EXPORTS`, or none of them."""
    contents = (
        json.dumps(results_of(comparison), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        csv_text(comparison),
        comparison_text(comparison),
        documents_text(comparison),
        page_html(comparison),
    )
    try:
        with staged(folder) as staging:
            for name, content in zip(EXPORTS, contents, strict=True):
                write_bytes(staging / name, content.encode("utf-8", "replace"))
    except OSError as error:
        raise StoreUnusable(
            f"{folder / 'results.json'} and the other results could not be written ({error.strerror or error}). "
            "Free some space or make the folder writable, and run the same command again; every finished cell is kept."
        ) from error


def csv_text(comparison: Comparison) -> str:
    """Format as CSV: one line per number, and one line with the reason for each refused or failed cell."""
    import pandas as pd

    table = pd.DataFrame([*number_rows(comparison), *missing_rows(comparison)], columns=list(COLUMNS))
    return str(table.astype(dict.fromkeys(COUNTS, "Int64")).map(escape_formula).to_csv(index=False))


def number_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """A row for each number, with its interval and its difference from the reference."""
    differences = {(d.scheme, d.task, d.metric, d.length): d for d in comparison.differences}
    lines = []
    for row in comparison.rows:
        low, high = interval(row) or (None, None)
        entry = asdict(row) | {"low": low, "high": high}
        d = differences.get((row.scheme, row.task, row.metric, row.length)) if row.depth is None else None
        if d is not None:
            entry |= {
                "against": d.reference, "difference": d.difference, "difference_low": d.low, "difference_high": d.high,
                "p_holm": d.p_holm, "verdict": d.verdict,
            }  # fmt: skip
        lines.append(entry)
    return lines


def missing_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """A row for each cell without numbers, with the reason as its note."""
    return [
        {
            "model": comparison.model_of(record.scheme), "scheme": record.scheme, "task": record.task,
            "length": record.length, "note": f"{record.state}: {record.reason}",
        }
        for record in comparison.records
        if record.state != "done"
    ]  # fmt: skip


def escape_formula(value: Any) -> Any:
    """Write a text on one line, escaped so that no spreadsheet runs it as a formula; other values stay."""
    if not isinstance(value, str):
        return value
    text = f"'{value}" if value.startswith(FORMULA) else value
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def documents_text(comparison: Comparison) -> str:
    """Format the scores of single documents as JSON, one line each."""
    return "".join(
        json.dumps({"scheme": label, **asdict(score)}, ensure_ascii=False, allow_nan=False) + "\n"
        for label, scores in comparison.documents.items()
        for score in scores
    )


def comparison_text(comparison: Comparison) -> str:
    """Format a comparison as Markdown: a table for every metric of every task, and the method of measurement."""
    about = comparison.about
    parts = [f"# {escaped(title(about))}"]
    if sure := verdict(comparison):
        parts.append(escaped(sure))
    if noted := remarks(comparison):
        parts.append(bullets(noted))
    if marks := legend(comparison):
        parts.append(escaped(marks))
    for task in comparison.tasks():
        metrics = comparison.metrics(task)
        parts += [f"## {escaped(task_title(task))} (`{escaped(task)}`)"] if metrics else []
        for table in (table for metric in metrics for table in metric_tables(comparison, task, metric)):
            parts += [escaped(table.caption), markdown_table(table)]
    for table in summaries(comparison):
        parts += [f"## {escaped(table.caption)}", markdown_table(table), escaped(table.note)]
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    parts += ["## How it was measured", bullets([*method(about), f"Versions: {versions}."])]
    if about["command"]:
        parts.append("```console\n$ " + about["command"].replace("\n", " ") + "\n```")
    return "\n\n".join(parts) + "\n"


def bullets(sentences: Sequence[str]) -> str:
    """Format a bulleted list."""
    return "\n".join(f"- {escaped(sentence)}" for sentence in sentences)


def markdown_table(table: Table) -> str:
    """Format a table with right-aligned numbers."""
    rows = ["| " + " | ".join(map(escaped, line)) + " |" for line in (table.head, *table.lines)]
    return "\n".join([rows[0], "|---|" + "---:|" * (len(table.head) - 1), *rows[1:]])


def escaped(text: str) -> str:
    """Escape a text so that it is neither markup nor the end of a table cell."""
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").split())
