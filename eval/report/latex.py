"""Tables of a comparison in LaTeX, for papers: booktabs, the best mean of a length in bold, sure differences marked."""

from __future__ import annotations

from collections.abc import Mapping

from hf_posenc.eval.report.marks import legend
from hf_posenc.eval.report.phrases import (
    axis_label,
    headings,
    is_share,
    task_title,
    to_units,
)
from hf_posenc.eval.results.comparison import GAINS, Comparison, rows_by_cell
from hf_posenc.eval.results.gate import shown_metrics
from hf_posenc.eval.results.rows import Row

LOWER = ("nll", "ppl", "prefix_nll", "prefix_ppl", "key_nats", "long_ppl")
"""Metrics of which the lowest is the best."""
SIGNS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "×": r"$\times$", "−": r"$-$", "±": r"$\pm$",
}  # fmt: skip


def latex_text(comparison: Comparison) -> str:
    """Format as LaTeX: a table for every metric of every task."""
    head = "% Needs \\usepackage{booktabs}. Bold: best mean at each length; ± is one standard error over documents.\n"
    tables = [
        latex_table(comparison, task, metric)
        for task in comparison.tasks()
        for metric in shown_metrics(comparison, task)
    ]
    return "\n".join([head, *tables])


def latex_table(comparison: Comparison, task: str, metric: str) -> str:
    """Format one table: entries as rows, lengths as columns."""
    rows = rows_by_cell(comparison.rows, task, metric)
    lengths = sorted({length for _, length in rows}, key=lambda length: length or 0)
    best = {length: best_value(rows, length, metric) for length in lengths}
    lines = [
        " & ".join(
            [
                escaped(label),
                *(
                    cell(rows.get((label, length)), best[length], comparison.mark(label, task, metric, length))
                    for length in lengths
                ),
            ],
        )
        for label in comparison.labels
    ]
    heads = " & ".join(["scheme", *map(escaped, headings(comparison.about, lengths))])
    caption = " ".join(
        filter(None, [f"{escaped(task_title(task))}: {escaped(axis_label(metric))}.", escaped(legend(comparison))])
    )
    body = "\n".join(f"{line} \\\\" for line in lines)
    return (
        f"\\begin{{table}}\n\\centering\n\\caption{{{caption}}}\n\\begin{{tabular}}{{l{'r' * len(lengths)}}}\n"
        f"\\toprule\n{heads} \\\\\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def best_value(rows: Mapping[tuple[str, int | None], Row], length: int | None, metric: str) -> str | None:
    """The best mean at a length, as it is shown; None for a metric without a known direction."""
    at_length = [row for (_, at), row in rows.items() if at == length]
    if metric in LOWER:
        return shown(min(at_length, key=lambda row: row.value))
    return shown(max(at_length, key=lambda row: row.value)) if is_share(metric) or metric in GAINS else None


def digits(metric: str) -> int:
    """Digits after the decimal point."""
    return 0 if is_share(metric) else 3


def shown(row: Row) -> str:
    """Format a mean in the units of its table."""
    return f"{to_units(row.metric, row.value):.{digits(row.metric)}f}"


def cell(row: Row | None, best: str | None, mark: str) -> str:
    """Format ``$3.064 \\pm 0.153^{+}$``, in bold if it looks like the best; a dash where there is no number."""
    if row is None:
        return "--"
    value = f"\\mathbf{{{shown(row)}}}" if shown(row) == best else shown(row)
    error = "" if row.stderr is None else f" \\pm {to_units(row.metric, row.stderr):.{digits(row.metric)}f}"
    raised = f"^{{{mark.replace('−', '-')}}}" if mark else ""
    return f"${value}{error}{raised}$"


def escaped(text: str) -> str:
    """Escape foreign text, on one line."""
    return "".join(SIGNS.get(sign, sign) for sign in " ".join(text.split()) if sign.isprintable())
