"""Result of a comparison: records of its cells, their rows, and confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import exp, log
from statistics import NormalDist
from typing import Any

from hf_posenc.core.student_t import student_t
from hf_posenc.eval.results.paired import NO_SPREAD, Difference, paired_differences
from hf_posenc.eval.results.rows import FEWEST, DocumentScore, Row, is_perplexity
from hf_posenc.eval.results.store import Record

FORMAT = 2
LARGEST = 709.0  # of the exponents of float64
SHARES = ("acc", "exact", "recall", "exact_match", "f1", "match", "part")
PRIMARY = ("acc", "match", "exact_match", "gain", "gain_over_other", "nll", "recall", "f1", "ppl")
"""Metrics in order of importance; the most important metric of a task represents it."""


def importance(metric: str) -> int:
    """Sort key of metrics, the most important first."""
    return PRIMARY.index(metric) if metric in PRIMARY else len(PRIMARY)


@dataclass(frozen=True)
class Comparison:
    """Records of all cells in order of measurement, and the settings they were measured with (``about``)."""

    about: dict[str, Any]
    records: list[Record]

    @cached_property
    def rows(self) -> list[Row]:
        """All rows; ``model`` is the model's name in reports, ``scheme`` the label of the entry."""
        return [
            replace(row, model=self.model_of(record.scheme), scheme=record.scheme)
            for record in self.records
            for row in record.rows
        ]

    def model_of(self, label: str) -> str:
        """Name in reports of the model that an entry is on."""
        return str(self.entries.get(label, {}).get("model", self.about["model"]))

    def trained_length_of(self, label: str) -> int:
        """Trained length of the model that an entry is on."""
        models = {model["name"]: model["trained_length"] for model in self.about.get("models", ())}
        return int(models.get(self.model_of(label), self.about["trained_length"]))

    def baseline_of(self, label: str) -> str | None:
        """Label of the unpatched entry on the same model; None if there is none."""
        unpatched = (name for name, one in self.entries.items() if one["scheme"] is None)
        return next((name for name in unpatched if self.model_of(name) == self.model_of(label)), None)

    @cached_property
    def entries(self) -> dict[str, dict[str, Any]]:
        """The entries of ``about["schemes"]`` by label."""
        return {scheme["label"]: scheme for scheme in self.about["schemes"]}

    @property
    def labels(self) -> list[str]:
        """Labels of the entries, in the order given."""
        return [scheme["label"] for scheme in self.about["schemes"]]

    def with_state(self, state: str) -> list[Record]:
        """Return the records that are ``"refused"``, ``"failed"`` or ``"done"``."""
        return [record for record in self.records if record.state == state]

    def done(self, label: str) -> list[Record]:
        """Return the finished records of an entry."""
        return [record for record in self.with_state("done") if record.scheme == label]

    def tasks(self) -> list[str]:
        """Return the tasks that have rows, in order; a task group has several."""
        return list(dict.fromkeys(row.task for row in self.rows))

    def metrics(self, task: str, depth: bool = False) -> list[str]:
        """Return the metrics of a task, most important first; with ``depth``, those measured per depth."""
        names = {row.metric: None for row in self.rows if row.task == task and (row.depth is not None) == depth}
        return sorted(names, key=importance)

    @cached_property
    def documents(self) -> dict[str, list[DocumentScore]]:
        """Scores of single documents by the labels of the entries."""
        scores: dict[str, list[DocumentScore]] = {label: [] for label in self.labels}
        for record in self.records:
            scores.setdefault(record.scheme, []).extend(record.documents)
        return scores

    def documents_of(self, label: str, task: str, metric: str, length: int | None) -> list[DocumentScore]:
        """Scores of the documents of an entry, over all depths."""
        return [score for score in self.documents[label] if score.row == (task, length, None, metric)]

    @cached_property
    def differences(self) -> list[Difference]:
        """Paired differences from the chosen reference; empty without one."""
        reference = self.about.get("against")
        return [] if reference is None else self.differences_from(reference)

    def differences_from(self, reference: str) -> list[Difference]:
        """Paired differences from one of the lines."""
        better = {(row.task, row.metric): row.higher_is_better for row in self.rows}
        return paired_differences(self.documents, reference, better)

    def mark(self, label: str, task: str, metric: str, length: int | None) -> str:
        """Symbol of the difference of one number from the reference; empty if it is not compared."""
        cell = (label, task, metric, length)
        return next((d.mark for d in self.differences if (d.scheme, d.task, d.metric, d.length) == cell), "")

    def to_dict(self) -> dict[str, Any]:
        """Return cells, rows and differences for ``results.json``, without times: equal settings give equal files."""
        cells = [
            {
                "scheme": r.scheme, "task": r.task, "length": r.length, "state": r.state, "reason": r.reason,
                "key": r.key, "remarks": r.remarks,
            }
            for r in self.records
        ]  # fmt: skip
        return {
            "format": FORMAT, "about": self.about, "cells": cells, "rows": list(map(asdict, self.rows)),
            "differences": list(map(asdict, self.differences)),
        }  # fmt: skip


def rows_by_cell(rows: Sequence[Row], task: str, metric: str) -> Mapping[tuple[str, int | None], Row]:
    """Index the rows of one metric over all depths by scheme and length."""
    return {(r.scheme, r.length): r for r in rows if (r.task, r.metric, r.depth) == (task, metric, None)}


def interval(row: Row) -> tuple[float, float] | None:
    """Compute the 95 % confidence interval of the mean over documents, by Student's t over their clusters.

    If a share is 0 or 1 in all documents, the standard error is 0, and Wilson's interval is returned instead. The
    interval of a perplexity is the exponential of that of its loss, whose standard error is stderr / value. None for
    fewer than `FEWEST` clusters.
    """
    n = row.n if row.clusters is None else row.clusters
    if row.stderr is None or n < FEWEST:
        return None
    half = student_t(n - 1) * row.stderr
    if is_perplexity(row.metric) and row.value > 0.0:  # symmetric in the loss: no perplexity is negative
        loss, far = log(row.value), half / row.value
        return exp(loss - far), exp(min(loss + far, LARGEST))
    if row.metric not in SHARES:
        return row.value - half, row.value + half
    if row.stderr < NO_SPREAD and row.value in (0.0, 1.0):
        return wilson(row.value, n)
    return max(0.0, row.value - half), min(1.0, row.value + half)


def wilson(value: float, n: int) -> tuple[float, float]:
    """Compute Wilson's 95 % interval of a share that is 0, or 1, in all of ``n`` trials."""
    z = NormalDist().inv_cdf(0.975)
    far = z * z / (n + z * z)
    return (0.0, far) if value == 0.0 else (1.0 - far, 1.0)
