"""Measure a variant that is a scheme on a trained model, as `hf_posenc.eval.compare` measures one of its cells.

A variant is an entry in words, ``"yarn"``, ``"self_extend:group=8"`` or ``"unpatched"``, or such an entry with a
stretch, ``{"entry": "ntk", "stretch": 2}``: the scheme is patched for so many times each length. A point of the axis is
a length in multiples of the trained length. All lengths, and all seeds, have the same targets. Options of the budget:

    scores      name of a metric of the finding → [lm-eval task, its metric], or [task, metric, depth]
    samples, scored, keys, depths      as `hf_posenc.eval.evaluate` takes them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from hf_posenc.eval.comparison.cell import MeasurementRequest
from hf_posenc.eval.comparison.fitting import Fitting
from hf_posenc.eval.comparison.measure import measure_cell
from hf_posenc.eval.lm.load import language_model
from hf_posenc.eval.lm.native_length import trained_length_of_lm
from hf_posenc.eval.quiet import suppress_output
from hf_posenc.schemes.entry import Entry, entries_of
from lab.cells import DocumentScore, Scores
from lab.finding import Job

MEASURES = {"samples": 16, "scored": 64, "keys": 8, "depths": (0.0, 0.25, 0.5, 0.75, 1.0)}
"""Settings of tasks, with their defaults."""


DOCUMENTS = 0
"""Random seed of windows, keys and masks: documents are the same under every seed of a finding."""


def sweep(job: Job) -> Iterator[tuple[float, Scores]]:
    """Score one scheme at all lengths of a job."""
    given = job.settings if isinstance(job.settings, Mapping) else {"entry": job.settings, "stretch": None}
    (entry,) = entries_of(given["entry"])
    yield from sweep_of(loaded(job.model), entry, job, stretch=given["stretch"])


@lru_cache(maxsize=1)
def loaded(model: str) -> Any:
    """The lm-eval model object of a model; cached, with its tokenized text, because every variant needs it."""
    with suppress_output(True):
        return language_model(model, None, dtype="float32")


def sweep_of(lm: Any, entry: Entry, job: Job, stretch: float | None = None) -> Iterator[tuple[float, Scores]]:
    """Score one scheme on a loaded model (an lm-eval model object) at all lengths of a job."""
    trained = trained_length_of_lm(lm)
    measure = {name: job.options.get(name, default) for name, default in MEASURES.items()} | {"seed": DOCUMENTS}
    request = MeasurementRequest(measure, round(max(job.axis) * trained), True, {}, {}, Fitting.on(lm, DOCUMENTS).fit)
    wanted = job.options["scores"]
    for number, at in enumerate(job.points):
        length, found = round(at * trained), {}
        put = entry if stretch is None else replace(entry, options={**entry.options, "factor": stretch * at})
        for task in dict.fromkeys(task for task, *_ in wanted.values()):
            job.progress(number / len(job.points), f"{task} at {length:,} tokens")
            found[task] = documents_of(lm, request, put, task, length, job)
        yield at, {name: scores_of(found[task], *which) for name, (task, *which) in wanted.items()}


def documents_of(
    lm: Any, request: MeasurementRequest, entry: Entry, task: str, length: int, job: Job
) -> Sequence[Mapping[str, Any]]:
    """Scores of single documents, as a comparison's record has them."""
    cell = request.cell(entry, task, [length])
    record = measure_cell(lm, cell, request, request.measure | {"text": None}, on_request=lambda: None)
    if record.state != "done":
        raise RuntimeError(f"{cell.name} was {record.state}: {record.reason} The verdict needs it; use another model.")
    return record.documents


def scores_of(documents: Sequence[Mapping[str, Any]], metric: str, depth: float | None = None) -> list[DocumentScore]:
    """The scores of one metric at one depth; by default over all depths."""
    return [
        DocumentScore(one["document"], one["cluster"], one["value"])
        for one in documents
        if (one["metric"], one["depth"]) == (metric, depth)
    ]
