"""Export a comparison as JSON, CSV, Markdown and a self-contained HTML page."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from hf_posenc.eval.report.cost_table import costs_csv
from hf_posenc.eval.report.effective import effective_csv
from hf_posenc.eval.report.figures import figure_files
from hf_posenc.eval.report.latex import latex_text
from hf_posenc.eval.report.page import page_html
from hf_posenc.eval.report.report import comparison_text
from hf_posenc.eval.report.result_files import write_result_files
from hf_posenc.eval.report.spreadsheet import escape_formula
from hf_posenc.eval.results.comparison import Comparison, interval
from hf_posenc.eval.results.effective_length import results_of
from hf_posenc.eval.results.paired import Difference

COMPARED = ("against", "difference", "difference_low", "difference_high", "p_holm", "verdict")
COLUMNS = (
    "model", "scheme", "task", "length", "depth", "metric", "value", "stderr", "low", "high", "n", "note", "clusters",
    *COMPARED,
)  # fmt: skip


def write_exports(folder: Path, comparison: Comparison) -> None:
    """Write the files of a comparison, all of them or none.

    These are ``results.json``, ``.csv``, ``.md`` and ``.tex``, ``documents.jsonl``, ``effective.csv``,
    ``costs.csv``, ``page.html`` and the figures.

    Raises:
        StoreUnusable: the folder cannot be written; the finished cells are safe in the store.
    """
    content = json.dumps(results_of(comparison), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    files: dict[str, str | bytes] = {
        "results.json": content,
        "results.csv": csv_text(comparison),
        "results.md": comparison_text(comparison),
        "documents.jsonl": documents_text(comparison),
        "results.tex": latex_text(comparison),
        "page.html": page_html(comparison),
        "effective.csv": effective_csv(comparison),
        "costs.csv": costs_csv(comparison),
    }
    write_result_files(folder, files | figure_files(comparison))


def csv_text(comparison: Comparison) -> str:
    """Format as CSV: one line per number, and one line with the reason for each refused or failed cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    differences = {(d.scheme, d.task, d.metric, d.length): d for d in comparison.differences}
    for row in comparison.rows:
        low, high = interval(row) or ("", "")
        values = (row.value, "" if row.stderr is None else row.stderr, low, high, row.n, "", row.clusters)
        difference = differences.get((row.scheme, row.task, row.metric, row.length)) if row.depth is None else None
        writer.writerow(
            [
                *map(escape_formula, (row.model, row.scheme, row.task)),
                row.length,
                row.depth,
                escape_formula(row.metric),
                *values,
                *compared(difference),
            ]
        )
    for record in comparison.records:
        if record.state != "done":
            note = escape_formula(f"{record.state}: {record.reason}")
            names = map(escape_formula, (comparison.model_of(record.scheme), record.scheme, record.task))
            writer.writerow([*names, record.length, *[""] * 7, note, *[""] * (1 + len(COMPARED))])
    return file.getvalue()


def compared(difference: Difference | None) -> list[Any]:
    """The columns `COMPARED` of one number."""
    if difference is None:
        return [""] * len(COMPARED)
    d = difference
    return [escape_formula(d.reference), d.difference, d.low, d.high, d.p_holm, d.verdict]


def documents_text(comparison: Comparison) -> str:
    """Format the scores of single documents as JSON, one line each."""
    return "".join(
        json.dumps({"scheme": label, **score.to_dict()}, ensure_ascii=False, allow_nan=False) + "\n"
        for label, scores in comparison.documents.items()
        for score in scores
    )
