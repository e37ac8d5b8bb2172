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
    from hf_posenc.eval.report.cost_table import TITLE as COSTS
    from hf_posenc.eval.report.cost_table import cost_table
    from hf_posenc.eval.report.effective import TITLE, effective_table
    from hf_posenc.eval.report.marks import legend
    from hf_posenc.eval.report.phrases import axis_label, table_of
    from hf_posenc.eval.report.rank_table import RULES, rank_tables
    from hf_posenc.eval.report.remarks import remarks
    from hf_posenc.eval.results.gate import shown_metrics

    for task in comparison.tasks():
        for metric in shown_metrics(comparison, task)[:1]:
            head, lines = table_of(comparison, task, metric)
            output.show_table(head, lines, title=f"{task}: {axis_label(metric)}")
    if comparison.rows:
        output.show_text("± is one standard error over documents.")
    if marks := legend(comparison):
        output.show_text(marks)
    for task, table in rank_tables(comparison).items():
        output.show_table(*table, title=f"{task}: ranks")
    for rule in RULES if comparison.about.get("rank") else ():
        output.show_text(rule)
    if (effective := effective_table(comparison)) is not None:
        output.show_table(*effective, title=TITLE)
    if comparison.rows:
        output.show_table(*cost_table(comparison), title=COSTS)
    for remark in remarks(comparison):
        output.show_text(remark)
    output.show_text(f"Written to {out}: {FILES}")
