"""The gate of a retrieval task: can the unpatched model do it at its own trained length?

Where it cannot, no scheme can be told from another by accuracy at longer lengths. The gate is open where the lower
limit of the 95 % interval of the accuracy lies above `THRESHOLD`, and above chance where a task is a choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hf_posenc.eval.results.comparison import PRIMARY, SHARES, Comparison, interval
from hf_posenc.eval.results.record import Record
from hf_posenc.eval.results.rows import Row

THRESHOLD = 0.05
"""Share of answers that the unpatched model must surely exceed at its trained length."""
CHANCE = {"posenc_association": 1 / 4, "posenc_icl": 1 / 6, "posenc_longbench2": 1 / 4}
"""Share of right answers that guessing has, in tasks with a choice."""


@dataclass(frozen=True)
class Gate:
    """What the unpatched model reaches on a task at its trained length.

    Attributes:
        task: lm-eval task.
        model: name of the model in reports.
        length: trained length, tokens.
        metric: the share that decides; empty where the task could not be measured.
        value, low, high: its mean over documents and 95 % interval, 0 … 1; without an interval, the mean three times.
        n: documents.
        open: whether ``low`` exceeds ``threshold``.
        threshold: what ``low`` is compared with.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def gate_of(record: Record, length: int, model: str) -> Gate:
    """The gate that a record of the unpatched model at its trained length gives; open where it has no share."""
    rows = [Row(**row) for row in record.rows]
    shares = {row.metric: row for row in rows if row.depth is None and row.length == length and row.metric in SHARES}
    decisive = sorted(shares, key=lambda metric: PRIMARY.index(metric) if metric in PRIMARY else len(PRIMARY))
    if not decisive:
        return Gate(record.task, length, model, reason=record.reason or "it has no accuracy there.")
    row = shares[decisive[0]]
    low, high = interval(row) or (row.value, row.value)
    threshold = max(THRESHOLD, CHANCE.get(record.task, 0.0))
    return Gate(record.task, length, model, row.metric, row.value, low, high, row.n, low > threshold, threshold)


def gates(about: Mapping[str, Any]) -> list[Gate]:
    """The gates of a comparison, one for each retrieval task and model."""
    return [Gate(**gate) for gate in about.get("gates", ())]


def shown_metrics(comparison: Comparison, task: str, depth: bool = False) -> list[str]:
    """The metrics of a task that are worth a table: without its shares where the gates of all models are closed."""
    found = [gate.open for gate in gates(comparison.about) if gate.task == task]
    closed = bool(found) and not any(found)
    return [metric for metric in comparison.metrics(task, depth) if not (closed and metric in SHARES)]
