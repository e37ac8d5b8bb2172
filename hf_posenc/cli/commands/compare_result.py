"""What ``hf-posenc compare`` shows, and the code it ends with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Exit

from hf_posenc.cli import output
from hf_posenc.cli.errors import FAILED, PARTLY

if TYPE_CHECKING:
    from hf_posenc.eval import Comparison

FILES = "page.html, results.md, .csv and .json, documents.jsonl"


def finish(comparison: Comparison, out: Path, as_json: bool) -> None:
    """Show a comparison, and exit with the code that says whether all cells were measured.

    Raises:
        Exit: a cell failed, or a scheme was refused.
    """
    if as_json:
        from hf_posenc.eval.results.effective_length import results_of

        output.show_json(results_of(comparison))
    else:
        show(comparison, out)
    if comparison.with_state("failed"):
        raise Exit(FAILED)
    if comparison.with_state("refused"):
        raise Exit(PARTLY)


def show(comparison: Comparison, out: Path) -> None:
    """Show one table per task, what was refused or failed, and the files written."""
    from hf_posenc.eval.report.remarks import remarks
    from hf_posenc.eval.report.tables import cost_table, legend, summaries, value_table
    from hf_posenc.eval.results.gate import shown_metrics

    for task in comparison.tasks():
        for metric in shown_metrics(comparison, task)[:1]:
            table = value_table(comparison, task, metric)
            output.show_table(table.head, table.lines, title=f"{task}: {table.caption}")
    if comparison.rows:
        output.show_text("± is one standard error over documents.")
    if marks := legend(comparison):
        output.show_text(marks)
    for table in [*summaries(comparison), *([cost_table(comparison)] if comparison.rows else [])]:
        output.show_table(table.head, table.lines, title=table.caption)
        if table.note:
            output.show_text(table.note)
    for remark in remarks(comparison):
        output.show_text(remark)
    output.show_text(f"Written to {out}: {FILES}")
