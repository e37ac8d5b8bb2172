"""Effective context length: the longest measured length at which a scheme is still as good as at the trained length.

Accuracies follow RULER's rule: at least 85.6 %, the score of Llama-2-7B at its 4,096 tokens (Hsieh et al. 2024,
arXiv:2404.06654, section 4). A loss may lie at most ln 1.05 nats above that of the unpatched model at its trained
length, which is 5 % of perplexity: all lengths score the same targets, so that more context should not make them worse.
Without the unpatched model, the scheme's own loss there takes its place.

The interval has the longest length at which the whole 95 % interval of the score passes, and the longest at which some
of it does. That of a loss is the interval of its difference from the reference over the same documents, where their
scores are known. Lengths between the measured ones are not guessed.
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
    """The longest measured length whose score passes a threshold, and those of the bounds of its 95 % interval.

    Lengths are in tokens, and 0 where none passes.
    """

    scheme: str
    task: str
    metric: str
    threshold: float
    length: int
    low: int
    high: int


def effective_lengths(comparison: Comparison) -> list[EffectiveLength]:
    """The effective context length of every scheme on every task that was measured at several lengths."""
    found = []
    for task in comparison.tasks():
        metric = next((name for name in comparison.metrics(task) if name == "nll" or name in SHARES), None)
        if metric is None:
            continue
        rows = rows_by_cell(comparison.rows, task, metric)
        for label in comparison.labels:
            own = [(n, row) for (name, n), row in rows.items() if name == label and n is not None]
            if len(own) < 2:
                continue
            if metric in SHARES:
                bounds = {n: (row.value, *(interval(row) or (row.value, row.value))) for n, row in own}
                found.append(effective_length(label, task, metric, RULER, bounds))
            elif (reference := reference_of(comparison, rows, label)) is not None:
                bounds = {n: loss_bounds(comparison, row, reference) for n, row in own}
                found.append(effective_length(label, task, metric, reference.value + SLACK, bounds))
    return found


def effective_length(
    label: str, task: str, metric: str, threshold: float, bounds: Mapping[int, tuple[float, float, float]]
) -> EffectiveLength:
    """The effective context length of one scheme, from its score and 95 % interval at all lengths."""
    sign, sure, possible = (1, 1, 2) if metric in SHARES else (-1, 2, 1)  # of losses, the lowest is the best

    def longest(bound: int) -> int:
        return max((n for n, values in bounds.items() if sign * values[bound] >= sign * threshold), default=0)

    return EffectiveLength(label, task, metric, threshold, longest(0), longest(sure), longest(possible))


def loss_bounds(comparison: Comparison, row: Row, reference: Row) -> tuple[float, float, float]:
    """A loss and its 95 % interval: of the difference from the reference where documents are known, else its own."""
    own, base = (comparison.documents_of(one.scheme, row.task, row.metric, one.length) for one in (row, reference))
    found = paired(row.scheme, reference.scheme, own, base) if own else None
    if found is None or found.clusters < FEWEST:
        return row.value, *(interval(row) or (row.value, row.value))
    mean, half = reference.value + found.difference, student_t(found.clusters - 1) * (found.stderr or 0.0)
    return row.value, mean - half, mean + half


def reference_of(comparison: Comparison, rows: Mapping[Any, Row], label: str) -> Row | None:
    """The loss that others are held against: of the unpatched model, else of the scheme, at the trained length.

    At the longest measured length within it; None where there is none.
    """
    trained = comparison.trained_length_of(label)
    for reference in (comparison.baseline_of(label), label):
        within = [n for name, n in rows if name == reference and n is not None and n <= trained]
        if within:
            return rows[reference, max(within)]
    return None
