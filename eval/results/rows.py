"""lm-eval's nested results as tidy data: one row per number, and the scores of documents that it is the mean of.

    Var(ȳ) = G / (G − 1) · Σ_g (Σ_{i in g} (y_i − ȳ))² / n²          n documents in G clusters

Windows of one book resemble each other: taken for independent they would promise too small an error. With one document
in each cluster this is the usual s² / n.

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
"""Clusters of documents needed for an interval."""


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
        stderr: standard error over documents, or over clusters of them; None for one, or where it is undefined.
        n: number of documents.
        clusters: number of clusters, which is that of documents where they are independent; None where it is not known.
        higher_is_better: None where the task does not say.
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
    errors = {
        row: standard_error([score.value for score in scores], [score.cluster for score in scores])
        for row, scores in by_row(documents).items()
    }
    return [
        with_error(row, errors)
        for task, metrics in results["results"].items()
        for row in task_rows(
            task, metrics, scheme, model, n=results["n-samples"].get(task, {}).get("effective", 0),
            better=results.get("higher_is_better", {}).get(task) or {},
        )
    ]  # fmt: skip


def task_rows(
    task: str, metrics: Mapping[str, Any], scheme: str, model: str, n: int, better: Mapping[str, bool]
) -> Iterable[Row]:
    """Convert the metrics of one task; lm-eval names a metric ``name,filter`` and its error ``name_stderr,filter``."""
    filters = {chosen for _, _, chosen in (key.partition(",") for key in metrics) if chosen}
    for key, value in metrics.items():
        name, _, chosen = key.partition(",")
        if not chosen or name.endswith("_stderr") or not isinstance(value, (int, float)):
            continue
        label = labelled(name, chosen, len(filters))
        metric, length, depth = parse_metric(label) or (label, None, None)
        stderr = number(metrics.get(f"{name}_stderr,{chosen}"))
        if loss := loss_of(metric, length):  # d exp(x) = exp(x) dx
            error = number(metrics.get(f"{loss}_L{length}_stderr,{chosen}"))
            stderr = error and value * error
        yield Row(model, scheme, task, length, depth, metric, float(value), stderr, n, None, better.get(name))


def with_error(row: Row, errors: Mapping[RowKey, tuple[float | None, int]]) -> Row:
    """A row with the standard error over clusters, where the scores of its documents are known."""
    loss = loss_of(row.metric, row.length)
    key = (row.task, row.length, row.depth, loss or row.metric)
    if key not in errors:
        return row
    stderr, clusters = errors[key]
    return replace(row, stderr=stderr and row.value * stderr if loss else stderr, clusters=clusters)


def loss_of(metric: str, length: int | None) -> str:
    """The loss that a perplexity of ours is the exponential of: ``nll`` of ``ppl``; empty for other metrics."""
    return f"{metric.removesuffix('ppl')}nll" if metric.endswith("ppl") and length is not None else ""


def is_perplexity(metric: str) -> bool:
    """Whether a metric, ours or lm-eval's, is the exponential of a loss: ``ppl``, ``word_perplexity``."""
    return metric.partition(",")[0].endswith(("ppl", "perplexity"))


def few_documents(rows: Iterable[Row]) -> Iterator[str]:
    """Say which results have no interval because all windows are of very few documents."""
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
        value: of this document; the mean over documents is the value of the row.
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
        """What the row of this score is known by."""
        return self.task, self.length, self.depth, self.metric


def document_scores(results: Mapping[str, Any]) -> list[DocumentScore]:
    """Scores of documents in lm-eval's results with ``samples``, of all metrics that are means over documents.

    Perplexity, an exponential of a mean, is none; nor are corpus metrics such as weighted perplexity.
    """
    found: list[DocumentScore] = []
    for task, samples in results.get("samples", {}).items():
        filters = dict.fromkeys(sample["filter"] for sample in samples)
        for chosen in filters:
            ordered = sorted((s for s in samples if s["filter"] == chosen), key=lambda sample: sample["doc_id"])
            for name in dict.fromkeys(name for sample in ordered for name in sample["metrics"]):
                scores = scores_of(task, name, labelled(name, chosen, len(filters)), ordered)
                reported = results["results"].get(task, {}).get(f"{name},{chosen}")
                if is_mean([score.value for score in scores], reported):
                    found += scores
    return found


def labelled(name: str, chosen: str, filters: int) -> str:
    """Name of a metric, with lm-eval's filter where the task has several."""
    return f"{name},{chosen}" if filters > 1 else name


def scores_of(task: str, name: str, label: str, samples: Sequence[Mapping[str, Any]]) -> list[DocumentScore]:
    """Scores of all documents that have the metric ``name`` as a number."""
    metric, length, depth = parse_metric(label) or (label, None, None)
    scores = [
        DocumentScore(task, *names_of(sample), length, depth, metric, value)
        for sample in samples
        if name in sample["metrics"] and (value := number(sample[name])) is not None
    ]
    names = distinct([score.document for score in scores])
    alone = len({score.cluster for score in scores}) == 1  # a result about this one text, of which they are a sample
    return [
        replace(score, document=name, cluster=name if alone else score.cluster)
        for score, name in zip(scores, names, strict=True)
    ]


def names_of(sample: Mapping[str, Any]) -> tuple[str, str]:
    """Name and cluster of a document of ours; of other tasks its number, each a cluster of its own."""
    doc = sample["doc"]
    if isinstance(doc, Mapping) and "cluster" in doc and "name" in doc:
        return str(doc["name"]), str(doc["cluster"])
    return str(sample["doc_id"]), str(sample["doc_id"])


def number(value: Any) -> float | None:
    """A score as a float; None for what is no single number."""
    try:
        return float(value) if not isinstance(value, str) else None
    except (TypeError, ValueError):
        return None


def is_mean(values: Sequence[float], reported: Any) -> bool:
    """Whether lm-eval's number is the mean of these."""
    if not values or not isinstance(reported, (int, float)) or not all(map(isfinite, values)):
        return False
    return isclose(fmean(values), reported, rel_tol=1e-9, abs_tol=1e-12)


def by_row(scores: Iterable[DocumentScore]) -> dict[RowKey, list[DocumentScore]]:
    """Scores grouped by the row that is their mean."""
    found: dict[RowKey, list[DocumentScore]] = defaultdict(list)
    for score in scores:
        found[score.row].append(score)
    return found


def standard_error(values: Sequence[float], clusters: Sequence[str]) -> tuple[float | None, int]:
    """Standard error of the mean of ``values``, and the number of clusters; no error for a single one."""
    mean, sums = fmean(values), defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster].append(value - mean)
    count = len(sums)
    if count < 2:
        return None, count
    return sqrt(count / (count - 1) * fsum(fsum(part) ** 2 for part in sums.values())) / len(values), count
