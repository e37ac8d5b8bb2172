"""``results.md``: a comparison in Markdown, a table for every metric of every task, and how it was measured."""

from __future__ import annotations

from collections.abc import Sequence

from hf_posenc.eval.report.effective import TITLE as EFFECTIVE
from hf_posenc.eval.report.effective import effective_rule, effective_table
from hf_posenc.eval.report.marks import difference_caption, difference_table, legend
from hf_posenc.eval.report.phrases import axis_label, table_of, task_title, title
from hf_posenc.eval.report.rank_table import RULES, rank_tables
from hf_posenc.eval.report.remarks import method, remarks
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
        parts += [f"## {escaped(task_title(task))}"] if metrics else []
        for metric in metrics:
            head, lines = table_of(comparison, task, metric)
            parts.append(f"{escaped(axis_label(metric))}, `{task}`\n\n" + markdown_table(head, lines))
            if differences := difference_table(comparison, task, metric):
                parts.append(f"{escaped(difference_caption(comparison, metric))}\n\n" + markdown_table(*differences))
    if (effective := effective_table(comparison)) is not None:
        parts += [f"## {EFFECTIVE}", markdown_table(*effective), escaped(effective_rule(comparison))]
    for task, table in rank_tables(comparison).items():
        parts += [f"## Ranks: {escaped(task_title(task))}", markdown_table(*table)]
    parts += [bullets(RULES)] if comparison.about.get("rank") else []
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    parts += ["## How it was measured", bullets([*method(about), f"Versions: {versions}."])]
    if about["command"]:
        parts.append("```console\n$ " + about["command"].replace("\n", " ") + "\n```")
    return "\n\n".join(parts) + "\n"


def bullets(sentences: Sequence[str]) -> str:
    """Format a bulleted list."""
    return "\n".join(f"- {escaped(sentence)}" for sentence in sentences)


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a table with right-aligned numbers."""
    rows = ["| " + " | ".join(map(escaped, line)) + " |" for line in (head, *lines)]
    return "\n".join([rows[0], "|---|" + "---:|" * (len(head) - 1), *rows[1:]])


def escaped(text: str) -> str:
    """Escape foreign text, so that it is neither markup nor the end of a cell."""
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").split())
