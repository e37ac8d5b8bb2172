"""The files of a search: JSON, CSV, Markdown and a picture."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path

from hf_posenc.eval.report.result_files import write_result_files
from hf_posenc.eval.report.spreadsheet import escape_formula
from hf_posenc.insight.search.halving import Halving
from hf_posenc.insight.search.plot import drawing
from hf_posenc.insight.search.result import SearchResult, summary
from hf_posenc.insight.search.tables import held_out_table, marked, trial_table

COLUMNS = (
    "scheme", "options", "default", "hides_keys", "state", "rung", "windows", "loss", "stderr", "seconds", "note",
)  # fmt: skip


def write_files(folder: Path, result: SearchResult, halving: Halving) -> None:
    """Write ``search.json``, ``search.csv``, ``search.md`` and ``search.png``, all of them or none.

    Raises:
        StoreUnusable: the folder cannot be written; the finished cells are safe in the store.
    """
    files: dict[str, str | bytes] = {
        "search.json": json.dumps(result.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        "search.csv": csv_of(result),
        "search.md": markdown_of(result),
        "search.png": drawing(result, halving),
    }
    write_result_files(folder, files)


def markdown_of(result: SearchResult) -> str:
    """What is printed, with all arms, as Markdown."""
    about = result.about
    lines = [f"# Search: {about['model']} at {about['target_length']:,} tokens", "", "```", *summary(result), "```", ""]
    lines += ["## Held-out text", "", *marked(held_out_table(result.held_out, result.chosen.label)), ""]
    lines += [
        "## All arms, on the text to choose on",
        "",
        *marked(trial_table(result.trials)),
        "",
        "![](search.png)",
        "",
    ]
    if about["command"]:
        lines += ["Made by", "", "```console", f"$ {about['command']}", "```", ""]
    return "\n".join(lines)


def csv_of(result: SearchResult) -> str:
    """All arms as CSV, one a line."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for trial in result.trials:
        values = asdict(trial) | {
            "scheme": escape_formula(trial.scheme), "options": json.dumps(trial.options),
            "note": escape_formula(trial.note),
        }  # fmt: skip
        writer.writerow(["" if values[name] is None else values[name] for name in COLUMNS])
    return file.getvalue()
