"""Effective context lengths as a table, and their rule in words."""

from __future__ import annotations

from hf_posenc.eval.report.phrases import is_share, metric_name
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.effective_length import RULER, EffectiveLength, effective_lengths

TITLE = "Effective context length"


def effective_table(comparison: Comparison) -> tuple[list[str], list[list[str]]] | None:
    """Column heads and rows: entries as rows, tasks as columns; None where no task was measured at several lengths."""
    found = effective_lengths(comparison)
    if not found:
        return None
    tasks = list(dict.fromkeys(one.task for one in found))
    cells = {(one.scheme, one.task): format_length(one) for one in found}
    lines = [[label, *(cells.get((label, task), "") for task in tasks)] for label in comparison.labels]
    return ["scheme", *tasks], lines


def format_length(found: EffectiveLength) -> str:
    """Format as ``512 (256 … 1,024)``; lengths of 0 as ``none``."""
    length, low, high = (f"{n:,}" if n else "none" for n in (found.length, found.low, found.high))
    return length if low == high == length else f"{length} ({low} … {high})"


def effective_rule(comparison: Comparison) -> str:
    """The rule in words, for the tasks of the table."""
    metrics = {one.metric for one in effective_lengths(comparison)}
    rules = []
    if any(map(is_share, metrics)):
        names = " or ".join(sorted(metric_name(metric) for metric in metrics if is_share(metric)))
        rules.append(f"{names} is at least {100 * RULER:g} % (RULER's rule, arXiv:2404.06654)")
    if any(not is_share(metric) for metric in metrics):
        rules.append("the loss is at most 5 % of perplexity above that of the unpatched model at its trained length")
    return (
        f"The longest measured length at which {'; '.join(rules)}. In brackets: where the whole 95 % interval of the "
        "score passes, and where some of it does."
    )
