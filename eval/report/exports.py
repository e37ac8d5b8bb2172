"""Export a comparison as JSON, CSV, Markdown and a self-contained HTML page."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.core.files.staged import staged
from hf_posenc.eval.errors import StoreUnusable
from hf_posenc.eval.report.figures import figure_files
from hf_posenc.eval.report.latex import latex_text
from hf_posenc.eval.report.page import page_html
from hf_posenc.eval.report.report import comparison_text
from hf_posenc.eval.results.comparison import Comparison, interval

COLUMNS = ("model", "scheme", "task", "length", "depth", "metric", "value", "stderr", "low", "high", "n", "note")
FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
    "\n",
    "＝",
    "＋",
    "－",
    "＠",
)  # a spreadsheet runs cells that begin with these


def write_exports(folder: Path, comparison: Comparison) -> None:
    """Write ``results.json``, ``.csv``, ``.md`` and ``.tex``, ``page.html`` and figures, all of them or none.

    Raises:
        StoreUnusable: the folder cannot be written; the finished cells are safe in the store.
    """
    content = json.dumps(comparison.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    files = {
        "results.json": content,
        "results.csv": csv_text(comparison),
        "results.md": comparison_text(comparison),
        "results.tex": latex_text(comparison),
        "page.html": page_html(comparison),
    }
    figures = figure_files(comparison)
    try:
        with staged(folder) as staging:
            for name, text in files.items():
                write_bytes(staging / name, text.encode("utf-8", "replace"))
            for name, drawn in figures.items():
                write_bytes(staging / name, drawn)
    except OSError as error:
        raise StoreUnusable(
            f"{folder / 'results.json'} and the other results could not be written ({error.strerror or error}). "
            "Free some space or make the folder writable, and run the same command again; every finished cell is kept."
        ) from error


def csv_text(comparison: Comparison) -> str:
    """Format as CSV: one line per number, and one line with the reason for each refused or failed cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in comparison.rows:
        low, high = interval(row) or ("", "")
        values = (row.value, "" if row.stderr is None else row.stderr, low, high, row.n, "")
        writer.writerow(
            [
                *map(escape_formula, (row.model, row.scheme, row.task)),
                row.length,
                row.depth,
                escape_formula(row.metric),
                *values,
            ]
        )
    for record in comparison.records:
        if record.state != "done":
            names = map(escape_formula, (comparison.about["model"], record.scheme, record.task))
            writer.writerow([*names, record.length, *[""] * 7, escape_formula(f"{record.state}: {record.reason}")])
    return file.getvalue()


def escape_formula(text: str) -> str:
    """Escape a name so that no spreadsheet takes it for a formula, on one line."""
    text = f"'{text}" if text.startswith(FORMULA) else text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
