"""Effective context length: the longest measured length at which a scheme is still as good as at the trained length.

Accuracies follow RULER's rule: at least 85.6 %, the score of Llama-2-7B at its 4,096 tokens (Hsieh et al. 2024,
arXiv:2404.06654, section 4). A loss may lie at most ln 1.05 nats above that of the unpatched model at its trained
length, which is 5 % of perplexity: all lengths score the same targets, so that more context should not make them worse.
Without the unpatched model, the scheme's own loss there takes its place.

The interval has the longest length at which the whole 95 % interval of the score passes, and the longest at which some
of it does. That of a loss is the interval of its difference from the reference over the same documents, where their
scores are known. Lengths between the measured ones are not guessed.

The gate of a retrieval task: can the unpatched model do it at its own trained length? Where it cannot, no scheme can be
told from another by accuracy at longer lengths. It is open where the lower limit of the 95 % interval of the accuracy
lies above `THRESHOLD`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

from hf_posenc.core.student_t import student_t
from hf_posenc.eval.results.comparison import SHARES, Comparison, importance, interval, rows_by_cell
from hf_posenc.eval.results.paired import paired
from hf_posenc.eval.results.rows import FEWEST, Row
from hf_posenc.eval.results.store import Record

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
    sure, possible = (1, 2) if metric in SHARES else (2, 1)

    def longest(bound: int) -> int:
        return max((n for n, values in bounds.items() if passes(metric, values[bound], threshold)), default=0)

    return EffectiveLength(label, task, metric, threshold, longest(0), longest(sure), longest(possible))


def loss_bounds(comparison: Comparison, row: Row, reference: Row) -> tuple[float, float, float]:
    """A loss and its 95 % interval: of the difference from the reference where documents are known, else its own."""
    own, base = (comparison.documents_of(one.scheme, row.task, row.metric, one.length) for one in (row, reference))
    found = paired(row.scheme, reference.scheme, own, base) if own else None
    if found is None or found.clusters < FEWEST:
        return row.value, *(interval(row) or (row.value, row.value))
    mean, half = reference.value + found.difference, student_t(found.clusters - 1) * (found.stderr or 0.0)
    return row.value, mean - half, mean + half


def passes(metric: str, value: float, threshold: float) -> bool:
    """Whether a score is at least as good as the threshold."""
    return value >= threshold if metric in SHARES else value <= threshold


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


THRESHOLD = 0.05
"""Share of answers that the unpatched model must significantly exceed at its trained length."""


@dataclass(frozen=True)
class Gate:
    """What the unpatched model reaches on a task at its trained length.

    Attributes:
        length: trained length, tokens.
        metric: the share that decides; empty where the task could not be measured.
        value, low, high: its mean over documents and 95 % interval, 0 … 1; without an interval, the mean three times.
        open: whether ``low`` exceeds ``threshold``.
        reason: why it could not be measured.
    """

    task: str
    length: int
    model: str = ""
    metric: str = ""
    value: float = 0.0
    low: float = 0.0
    high: float = 1.0
    n: int = 0
    open: bool = True
    threshold: float = THRESHOLD
    reason: str = ""


def gate_of(record: Record, length: int, model: str) -> Gate:
    """The gate that a record of the unpatched model at its trained length gives; open where it has no share."""
    shares = {r.metric: r for r in record.rows if r.depth is None and r.length == length and r.metric in SHARES}
    if not shares:
        return Gate(record.task, length, model, reason=record.reason or "it has no accuracy there.")
    row = shares[min(shares, key=importance)]
    low, high = interval(row) or (row.value, row.value)
    return Gate(record.task, length, model, row.metric, row.value, low, high, row.n, low > THRESHOLD)


def gates(about: Mapping[str, Any]) -> list[Gate]:
    """The gates of a comparison, one for each retrieval task and model."""
    return [Gate(**gate) for gate in about.get("gates", ())]


def shown_metrics(comparison: Comparison, task: str, depth: bool = False) -> list[str]:
    """The metrics of a task that are worth a table: without its shares where the gates of all models are closed."""
    found = [gate.open for gate in gates(comparison.about) if gate.task == task]
    closed = bool(found) and not any(found)
    return [metric for metric in comparison.metrics(task, depth) if not (closed and metric in SHARES)]
