"""Marks of sure differences in tables, and tables of the differences themselves."""

from __future__ import annotations

from hf_posenc.eval.report.phrases import UNITS, headings, is_share, metric_name, to_units
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.paired import FEWEST, Difference


def legend(comparison: Comparison) -> str:
    """What the marks mean; empty where no reference was chosen."""
    reference = comparison.about.get("against")
    if reference is None:
        return ""
    few = any(difference.clusters < FEWEST for difference in comparison.differences)
    return (
        f"Marks: + surely better than {reference}, − surely worse, ? undecided; paired over the same documents, "
        "p below 0.05 after Holm's correction over the table."
    ) + few * f" Fewer than {FEWEST} documents or keys have no interval, and are always undecided."


def difference_caption(comparison: Comparison, metric: str) -> str:
    """Caption of a table of differences."""
    unit = "percentage points" if is_share(metric) else UNITS.get(metric)
    named = f"{metric_name(metric)} minus that of {comparison.about['against']}"
    return f"{named}{f' ({unit})' if unit else ''}: mean over documents, 95 % interval, mark"


def difference_table(comparison: Comparison, task: str, metric: str) -> tuple[list[str], list[list[str]]] | None:
    """Column heads and rows of the differences of one metric; None where there are none."""
    found = {(d.scheme, d.length): d for d in comparison.differences if (d.task, d.metric) == (task, metric)}
    if not found:
        return None
    lengths = sorted({length for _, length in found}, key=lambda length: length or 0)
    lines = [
        [label, *(format_difference(found.get((label, length))) for length in lengths)]
        for label in comparison.labels
        if label != comparison.about["against"]
    ]
    return ["scheme", *headings(comparison.about, lengths)], lines


def format_difference(difference: Difference | None) -> str:
    """Format as ``+0.376 (+0.312 … +0.440) −``; without an interval where there is none."""
    if difference is None:
        return ""
    digits = "+.1f" if is_share(difference.metric) else "+.3f"

    def shown(value: float) -> str:
        return f"{to_units(difference.metric, value):{digits}}".replace("-", "−")

    interval = ""
    if difference.low is not None and difference.high is not None:
        interval = f" ({shown(difference.low)} … {shown(difference.high)})"
    return f"{shown(difference.difference)}{interval} {difference.mark}"
