"""Convert lm-eval's nested results to tidy data: one row per number, and the document scores behind each mean.

    Var(ȳ) = G / (G − 1) · Σ_g (Σ_{i in g} (y_i − ȳ))² / n²          n documents in G clusters

Windows of one book resemble each other; if they counted as independent, the error would be too small. With one document
in each cluster, the formula is the usual s² / n.

Cameron, Miller 2015, "A Practitioner's Guide to Cluster-Robust Inference", Journal of Human Resources 50(2),
section II, for a regression on a constant alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, isclose, isfinite, sqrt
from statistics import fmean
from typing import Any

from hf_posenc.eval.tasks.sweep import parse_metric
from hf_posenc.eval.texts.sampling import distinct

FEWEST = 3
"""Smallest number of document clusters for which an interval is given."""


@dataclass(frozen=True)
class Row:
    """One number.

    Attributes:
        model: name, path or class of the model.
        scheme: name of the positional scheme.
        task: lm-eval task.
        length: tokens of the request; None for tasks without a length sweep.
        depth: relative depth of the key in the filler text, 0 … 1; None over all depths, or without a key.
        metric: ``nll`` (nats/token), ``ppl``, ``acc``, ``recall``, …
        value: mean over documents.
        stderr: standard error over clusters of documents; None for one cluster, or if it is undefined.
        n: number of documents.
        clusters: number of clusters, equal to ``n`` for independent documents; None if unknown.
        higher_is_better: None if the task does not say.
    """

    model: str
    scheme: str
    task: str
    length: int | None
    depth: float | None
    metric: str
    value: float
    stderr: float | None
    n: int
    clusters: int | None = None
    higher_is_better: bool | None = None


def rows_of(
    results: Mapping[str, Any], *, scheme: str, model: str, documents: Sequence[DocumentScore] = ()
) -> list[Row]:
    """Convert lm-eval's ``results`` to rows, in its order, with standard errors over the clusters of ``documents``."""
    errors: dict[RowKey, tuple[float | None, int | None]] = {
        row: standard_error([score.value for score in scores], [score.cluster for score in scores])
        for row, scores in by_row(documents).items()
    }
    rows: list[Row] = []
    for task, metrics in results["results"].items():
        count = results["n-samples"].get(task, {}).get("effective", 0)
        better = results.get("higher_is_better", {}).get(task) or {}
        filters = {key.partition(",")[2] for key in metrics} - {""}
        for key, value in metrics.items():  # "name,filter", or "name_stderr,filter" for its error
            name, _, filter_name = key.partition(",")
            if not filter_name or name.endswith("_stderr") or not isinstance(value, (int, float)):
                continue
            label = labelled(name, filter_name, len(filters))
            metric, length, depth = parse_metric(label) or (label, None, None)
            loss = loss_of(metric, length)
            reported = number(metrics.get(f"{f'{loss}_L{length}' if loss else name}_stderr,{filter_name}"))
            stderr, clusters = errors.get((task, length, depth, loss or metric), (reported, None))
            if loss and stderr is not None:
                stderr *= value  # d exp(x) = exp(x) dx
            rows.append(
                Row(model, scheme, task, length, depth, metric, float(value), stderr, count, clusters, better.get(name))
            )
    return rows


def loss_of(metric: str, length: int | None) -> str:
    """Name of the loss whose exponential is a perplexity of ours: ``nll`` for ``ppl``; empty for other metrics."""
    return f"{metric.removesuffix('ppl')}nll" if metric.endswith("ppl") and length is not None else ""


def is_perplexity(metric: str) -> bool:
    """Whether a metric, ours or lm-eval's, is the exponential of a loss: ``ppl``, ``word_perplexity``."""
    return metric.partition(",")[0].endswith(("ppl", "perplexity"))


def few_documents(rows: Iterable[Row]) -> Iterator[str]:
    """Say which results have no interval because all windows come from very few documents."""
    for row in rows:
        if row.clusters is not None and row.clusters < min(FEWEST, row.n):
            yield (
                f"{row.task}: the {row.n} windows are of {row.clusters} documents, whose windows are not independent "
                f"of each other, and too few for an interval. Give {FEWEST} documents or more, or a single one."
            )


RowKey = tuple[str, int | None, float | None, str]
"""Task, length, depth and metric."""


@dataclass(frozen=True)
class DocumentScore:
    """One metric of one document.

    Attributes:
        task: lm-eval task.
        document: name of the document, unique within the task: a window, a passkey, or its number in other tasks.
        cluster: name shared by documents that are not independent, such as the windows of one text.
        length: tokens of the request; None for tasks without a length sweep.
        depth: relative depth of the key, 0 … 1; None over all depths, or without a key.
        metric: as in `Row`.
        value: score of this document; the mean over documents is the value of the row.
    """

    task: str
    document: str
    cluster: str
    length: int | None
    depth: float | None
    metric: str
    value: float

    @property
    def row(self) -> RowKey:
        """Key of the row that this score belongs to."""
        return self.task, self.length, self.depth, self.metric


def document_scores(results: Mapping[str, Any]) -> list[DocumentScore]:
    """Document scores of all metrics that are means over documents, from lm-eval's results with ``samples``.

    Perplexity is left out, because it is the exponential of a mean; so are corpus metrics such as weighted perplexity.
    """
    means: list[DocumentScore] = []
    for task, samples in results.get("samples", {}).items():
        filters = dict.fromkeys(sample["filter"] for sample in samples)
        for filter_name in filters:
            filtered = [sample for sample in samples if sample["filter"] == filter_name]
            ordered = sorted(filtered, key=lambda sample: sample["doc_id"])
            for name in dict.fromkeys(name for sample in ordered for name in sample["metrics"]):
                scores = scores_of(task, name, labelled(name, filter_name, len(filters)), ordered)
                reported = results["results"].get(task, {}).get(f"{name},{filter_name}")
                if is_mean([score.value for score in scores], reported):
                    means += scores
    return means


def labelled(name: str, filter_name: str, filters: int) -> str:
    """Name of a metric, with lm-eval's filter if the task has several filters."""
    return f"{name},{filter_name}" if filters > 1 else name


def scores_of(task: str, name: str, label: str, samples: Sequence[Mapping[str, Any]]) -> list[DocumentScore]:
    """Scores of all documents for which the metric ``name`` is a number."""
    metric, length, depth = parse_metric(label) or (label, None, None)
    scores = [
        DocumentScore(task, *names_of(sample), length, depth, metric, value)
        for sample in samples
        if name in sample["metrics"] and (value := number(sample[name])) is not None
    ]
    documents = distinct([score.document for score in scores])
    # Windows of a single text are an independent sample of it, and the result is about this text.
    single_text = len({score.cluster for score in scores}) == 1
    return [
        replace(score, document=document, cluster=document if single_text else score.cluster)
        for score, document in zip(scores, documents, strict=True)
    ]


def names_of(sample: Mapping[str, Any]) -> tuple[str, str]:
    """Name and cluster of a document of our tasks; documents of other tasks are numbered, each its own cluster."""
    doc = sample["doc"]
    if isinstance(doc, Mapping) and "cluster" in doc and "name" in doc:
        return str(doc["name"]), str(doc["cluster"])
    return str(sample["doc_id"]), str(sample["doc_id"])


def number(value: Any) -> float | None:
    """A score as a float; None if it is no single number."""
    try:
        return float(value) if not isinstance(value, str) else None
    except (TypeError, ValueError):
        return None


def is_mean(values: Sequence[float], reported: Any) -> bool:
    """Whether the number that lm-eval reports is the mean of ``values``."""
    if not values or not isinstance(reported, (int, float)) or not all(map(isfinite, values)):
        return False
    return isclose(fmean(values), reported, rel_tol=1e-9, abs_tol=1e-12)


def by_row(scores: Iterable[DocumentScore]) -> dict[RowKey, list[DocumentScore]]:
    """Group document scores by the row that is their mean."""
    groups: dict[RowKey, list[DocumentScore]] = defaultdict(list)
    for score in scores:
        groups[score.row].append(score)
    return groups


def standard_error(values: Sequence[float], clusters: Sequence[str]) -> tuple[float | None, int]:
    """Standard error of the mean of ``values``, and the number of clusters; the error is None for one cluster."""
    mean, sums = fmean(values), defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster].append(value - mean)
    count = len(sums)
    if count < 2:
        return None, count
    return sqrt(count / (count - 1) * fsum(fsum(part) ** 2 for part in sums.values())) / len(values), count
