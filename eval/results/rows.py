"""Convert lm-eval's nested results to tidy data: one row per number."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.eval.results.documents import DocumentScore, RowKey, by_row, labelled, number, standard_error
from hf_posenc.eval.results.paired import FEWEST
from hf_posenc.eval.tasks.sweep import REPEATED, parse_metric


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
        if loss := loss_of(metric, length):
            stderr = times(value, number(metrics.get(f"{loss}_L{length}_stderr,{chosen}")))
        yield Row(model, scheme, task, length, depth, metric, float(value), stderr, n, None, better.get(name))


def with_error(row: Row, errors: Mapping[RowKey, tuple[float | None, int]]) -> Row:
    """A row with the standard error over clusters, where the scores of its documents are known."""
    loss = loss_of(row.metric, row.length)
    key = (row.task, row.length, row.depth, loss or row.metric)
    if key not in errors:
        return row
    stderr, clusters = errors[key]
    return replace(row, stderr=times(row.value, stderr) if loss else stderr, clusters=clusters)


def loss_of(metric: str, length: int | None) -> str:
    """The loss that a perplexity of ours is the exponential of: ``nll`` of ``ppl``; empty for other metrics."""
    return f"{metric.removesuffix('ppl')}nll" if metric.endswith("ppl") and length is not None else ""


def is_perplexity(metric: str) -> bool:
    """Whether a metric, ours or lm-eval's, is the exponential of a loss: ``ppl``, ``word_perplexity``."""
    return metric.partition(",")[0].endswith(("ppl", "perplexity"))


def times(value: float, error: float | None) -> float | None:
    """Standard error of an exponential: d exp(x) = exp(x) dx."""
    return None if error is None else value * error


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as JSON, atomically; values without a JSON form, such as functions, are written as text."""
    write_bytes(path, (json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n").encode())


def remarks_on(results: Mapping[str, Any], rows: Iterable[Row]) -> list[str]:
    """Remarks on lm-eval's results and the rows made of them."""
    return [*repeated(results), *dict.fromkeys(few_documents(rows))]


def repeated(results: Mapping[str, Any]) -> Iterator[str]:
    """Say which results come from fewer prompts than were asked."""
    for task, config in results.get("configs", {}).items():
        for length, (asked, different) in ((config.get("metadata") or {}).get(REPEATED) or {}).items():
            yield (
                f"{task} at {int(length):,} tokens: {asked} prompts, {different} distinct, because depths "
                "coincide where there is little filler. Intervals count keys, not prompts."
            )


def few_documents(rows: Iterable[Row]) -> Iterator[str]:
    """Say which results have no interval because all windows are of very few documents."""
    for row in rows:
        if row.clusters is not None and row.clusters < min(FEWEST, row.n):
            yield (
                f"{row.task}: the {row.n} windows are of {row.clusters} documents, whose windows are not independent "
                f"of each other, and too few for an interval. Give {FEWEST} documents or more, or a single one."
            )
