"""``results.md``: a comparison in Markdown, a table for every metric of every task, and how it was measured."""

from __future__ import annotations

from collections.abc import Sequence

from hf_posenc.eval.report.phrases import task_title, title
from hf_posenc.eval.report.remarks import method, remarks
from hf_posenc.eval.report.tables import Table, legend, metric_tables, summaries
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.gate import shown_metrics


def comparison_text(comparison: Comparison) -> str:
    """Format a comparison as Markdown: a table for every metric of every task, and how it was measured."""
    about = comparison.about
    parts = [f"# {escaped(title(about))}"]
    if noted := remarks(comparison):
        parts.append(bullets(noted))
    if marks := legend(comparison):
        parts.append(escaped(marks))
    for task in comparison.tasks():
        metrics = shown_metrics(comparison, task)
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
    """Escape foreign text, so that it is neither markup nor the end of a cell."""
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").split())
