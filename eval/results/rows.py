"""Convert lm-eval's nested results to tidy data: one row per number."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.eval.tasks.sweep import parse_metric


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
        stderr: standard error over documents; None for one document, or where it is undefined.
        n: number of documents.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def rows_of(results: Mapping[str, Any], *, scheme: str, model: str) -> list[Row]:
    """Convert lm-eval's ``results`` to rows, in its order."""
    return [
        row
        for task, metrics in results["results"].items()
        for row in task_rows(task, metrics, scheme, model, n=results["n-samples"].get(task, {}).get("effective", 0))
    ]


def task_rows(task: str, metrics: Mapping[str, Any], scheme: str, model: str, n: int) -> Iterable[Row]:
    """Convert the metrics of one task; lm-eval names a metric ``name,filter`` and its error ``name_stderr,filter``."""
    for key, value in metrics.items():
        name, _, chosen = key.partition(",")
        if not chosen or name.endswith("_stderr") or not isinstance(value, (int, float)):
            continue
        metric, length, depth = parse_metric(name) or (name, None, None)
        stderr = number(metrics.get(f"{name}_stderr,{chosen}"))
        if metric.endswith("ppl") and length is not None:
            loss = number(metrics.get(f"{metric.removesuffix('ppl')}nll_L{length}_stderr,{chosen}"))
            stderr = None if loss is None else value * loss  # d exp(x) = exp(x) dx
        yield Row(model, scheme, task, length, depth, metric, float(value), stderr, n)


def number(value: Any) -> float | None:
    """Return a float, or None for lm-eval's ``"N/A"``."""
    return float(value) if isinstance(value, (int, float)) else None


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as JSON, atomically; values without a JSON form, such as functions, are written as text."""
    write_bytes(path, (json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n").encode())
