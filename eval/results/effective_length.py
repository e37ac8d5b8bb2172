"""Effective context length: the longest measured length at which a scheme is still as good as at the trained length.

Accuracies follow RULER's rule: at least 85.6 %, the score of Llama-2-7B at its 4,096 tokens (Hsieh et al. 2024,
arXiv:2404.06654, section 4). A loss may lie at most ln 1.05 nats above that of the unpatched model at its trained
length, which is 5 % of perplexity: all lengths score the same targets, so that more context should not make them worse.
Without the unpatched model, the scheme's own loss there takes its place.

The interval has the longest length at which the whole 95 % interval of the score passes, and the longest at which some
of it does. Lengths between the measured ones are not guessed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import log
from typing import Any

from hf_posenc.eval.results.comparison import SHARES, Comparison, interval, rows_by_cell
from hf_posenc.eval.results.rows import Row

RULER = 0.856
SLACK = log(1.05)


@dataclass(frozen=True)
class EffectiveLength:
    """The effective context length of a scheme on a task.

    Attributes:
        scheme: label of the entry.
        task, metric: what decides.
        threshold: of the score.
        length: the longest measured length that passes, tokens; 0 where none does.
        low, high: the same of the bounds of the score's 95 % interval.
    """

    scheme: str
    task: str
    metric: str
    threshold: float
    length: int
    low: int
    high: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def effective_lengths(comparison: Comparison) -> list[EffectiveLength]:
    """The effective context length of every scheme on every task that was measured at several lengths."""
    found = []
    for task in comparison.tasks():
        metric = next((name for name in comparison.metrics(task) if name == "nll" or name in SHARES), None)
        if metric is None:
            continue
        rows = rows_by_cell(comparison.rows, task, metric)
        for label in comparison.labels:
            own = sorted(
                (row for (name, length), row in rows.items() if name == label and length is not None),
                key=lambda row: row.length or 0,
            )
            threshold = RULER if metric in SHARES else loss_threshold(comparison, rows, label)
            if len(own) > 1 and threshold is not None:
                found.append(effective_length(own, threshold))
    return found


def effective_length(rows: list[Row], threshold: float) -> EffectiveLength:
    """The effective context length of one scheme, from its rows at all lengths."""
    first = rows[0]
    bounds = {row.length or 0: (row.value, *(interval(row) or (row.value, row.value))) for row in rows}
    sure, possible = (1, 2) if first.metric in SHARES else (2, 1)

    def longest(bound: int) -> int:
        passing = (n for n, values in bounds.items() if passes(first.metric, values[bound], threshold))
        return max(passing, default=0)

    return EffectiveLength(
        first.scheme, first.task, first.metric, threshold, longest(0), longest(sure), longest(possible)
    )


def passes(metric: str, value: float, threshold: float) -> bool:
    """Whether a score is at least as good as the threshold."""
    return value >= threshold if metric in SHARES else value <= threshold


def loss_threshold(comparison: Comparison, rows: Any, label: str) -> float | None:
    """The largest loss that passes; None where nothing was measured within the trained length."""
    entries = {entry["label"]: entry for entry in comparison.about["schemes"]}
    digest, trained = entries[label].get("model_digest"), trained_length_of(comparison, label)
    baselines = [
        name for name, e in entries.items() if e["scheme"] is None and e.get("model_digest") == digest
    ]  # of the same model
    for reference in (*baselines, label):
        within = [n for name, n in rows if name == reference and n is not None and n <= trained]
        if within:
            return float(rows[reference, max(within)].value) + SLACK
    return None


def trained_length_of(comparison: Comparison, label: str) -> int:
    """The trained length of the model of an entry."""
    digests = {entry["label"]: entry.get("model_digest") for entry in comparison.about["schemes"]}
    lengths = {model["digest"]: model["trained_length"] for model in comparison.about.get("models", ())}
    return int(lengths.get(digests[label], comparison.about["trained_length"]))
