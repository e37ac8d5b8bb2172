"""Effective context length: the longest measured length at which a scheme is still as good as at the trained length.

Accuracies follow RULER's rule: at least 85.6 %, the score of Llama-2-7B at its 4,096 tokens (Hsieh et al. 2024,
arXiv:2404.06654, section 4). A loss may exceed that of the unpatched model at its trained length by at most ln 1.05
nats, which is 5 % of perplexity. All lengths score the same targets, so more context should not raise the loss. If the
unpatched model is not measured, the scheme's own loss at the trained length is the reference.

The lower bound is the longest length at which the whole 95 % interval of the score passes; the upper bound is the
longest at which a part of it does. For a loss, the interval is that of its difference from the reference over the same
documents, if their scores are known. Lengths between the measured ones are not interpolated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

from hf_posenc.core.student_t import student_t
from hf_posenc.eval.results.comparison import SHARES, Comparison, interval, rows_by_cell
from hf_posenc.eval.results.paired import paired
from hf_posenc.eval.results.rows import FEWEST, Row

RULER = 0.856
SLACK = log(1.05)


@dataclass(frozen=True)
class EffectiveLength:
    """The longest measured length whose score passes a threshold, and the bounds of this length.

    Lengths are in tokens; a length is 0 if none passes.
    """

    scheme: str
    task: str
    metric: str
    threshold: float
    length: int
    low: int
    high: int


def effective_lengths(comparison: Comparison) -> list[EffectiveLength]:
    """Effective context length of every scheme on every task that was measured at several lengths."""
    results = []
    for task in comparison.tasks():
        metric = next((name for name in comparison.metrics(task) if name == "nll" or name in SHARES), None)
        if metric is None:
            continue
        rows = rows_by_cell(comparison.rows, task, metric)
        if len({n for _, n in rows if n is not None}) < 2:
            continue
        for label in comparison.labels:
            own = [(n, row) for (name, n), row in rows.items() if name == label and n is not None]
            if not own:
                continue
            if metric in SHARES:
                bounds = {n: (row.value, *(interval(row) or (row.value, row.value))) for n, row in own}
                results.append(effective_length(label, task, metric, RULER, bounds))
            elif (reference := reference_of(comparison, rows, label)) is not None:
                bounds = {n: loss_bounds(comparison, row, reference) for n, row in own}
                results.append(effective_length(label, task, metric, reference.value + SLACK, bounds))
    return results


def effective_length(
    label: str, task: str, metric: str, threshold: float, bounds: Mapping[int, tuple[float, float, float]]
) -> EffectiveLength:
    """Effective context length of one scheme, from its score and 95 % interval at all lengths."""
    least, scores = threshold, bounds
    if metric not in SHARES:  # for a loss, lower is better
        least, scores = -threshold, {n: (-value, -high, -low) for n, (value, low, high) in bounds.items()}

    def longest(bound: int) -> int:
        return max((n for n, score in scores.items() if score[bound] >= least), default=0)

    return EffectiveLength(label, task, metric, threshold, longest(0), longest(1), longest(2))


def loss_bounds(comparison: Comparison, row: Row, reference: Row) -> tuple[float, float, float]:
    """A loss and its 95 % interval: that of its difference from the reference if documents are known, else its own."""
    own, base = (comparison.documents_of(one.scheme, row.task, row.metric, one.length) for one in (row, reference))
    difference = paired(row.scheme, reference.scheme, own, base) if own else None
    if difference is None or difference.clusters < FEWEST:
        return row.value, *(interval(row) or (row.value, row.value))
    mean = reference.value + difference.difference
    half = student_t(difference.clusters - 1) * (difference.stderr or 0.0)
    return row.value, mean - half, mean + half


def reference_of(comparison: Comparison, rows: Mapping[Any, Row], label: str) -> Row | None:
    """The reference loss: of the unpatched model, or else of the scheme, at the longest length within the trained one.

    None if no such length was measured.
    """
    trained = comparison.trained_length_of(label)
    for reference in (comparison.baseline_of(label), label):
        within = [n for name, n in rows if name == reference and n is not None and n <= trained]
        if within:
            return rows[reference, max(within)]
    return None
