"""A comparison as files: JSON for programs, CSV for spreadsheets, Markdown for notes, a page for people."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.core.files.staged import staged
from hf_posenc.eval.errors import StoreUnusable
from hf_posenc.eval.report.page import page_html
from hf_posenc.eval.report.report import comparison_text
from hf_posenc.eval.results.comparison import Comparison, interval

COLUMNS = ("model", "scheme", "task", "length", "depth", "metric", "value", "stderr", "low", "high", "n", "note")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # what a spreadsheet would run


def write_exports(folder: Path, comparison: Comparison) -> None:
    """Write ``results.json``, ``results.csv``, ``results.md`` and ``page.html``: all four new, or none.

    Raises:
        StoreUnusable: the folder cannot be written; the finished cells are safe in the store.
    """
    content = json.dumps(comparison.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    files = {
        "results.json": content,
        "results.csv": csv_text(comparison),
        "results.md": comparison_text(comparison),
        "page.html": page_html(comparison),
    }
    try:
        with staged(folder) as beside:
            for name, text in files.items():
                write_bytes(beside / name, text.encode("utf-8", "replace"))
    except OSError as error:
        raise StoreUnusable(
            f"{folder / 'results.json'} and its companions could not be written ({error.strerror or error}). "
            "Make room, or the folder writable, and run the same command again; every finished cell is kept."
        ) from error


def csv_text(comparison: Comparison) -> str:
    """One line a number; one line, without a number and with the reason, for each cell that has none."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in comparison.rows:
        low, high = interval(row) or ("", "")
        values = (row.value, "" if row.stderr is None else row.stderr, low, high, row.n, "")
        writer.writerow(
            [*map(harmless, (row.model, row.scheme, row.task)), row.length, row.depth, harmless(row.metric), *values]
        )
    for record in comparison.records:
        if record.state != "done":
            names = map(harmless, (comparison.about["model"], record.scheme, record.task))
            writer.writerow([*names, record.length, *[""] * 7, harmless(f"{record.state}: {record.reason}")])
    return file.getvalue()


def harmless(text: str) -> str:
    """A name that no spreadsheet takes for a formula, on one line."""
    text = f"'{text}" if text.startswith(FORMULA) else text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
