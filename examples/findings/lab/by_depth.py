"""Measure retrieval by depth: points of the axis are depths of the hidden key, and a variant is a scheme at a length.

The settings of a variant: ``entry``, in words, and ``length``, in multiples of the trained length. Options of the
budget: ``task``, a retrieval task of `hf_posenc.eval`; ``scores``, name of a metric of the finding → metric of the
task; ``keys``.
"""

from __future__ import annotations

from collections.abc import Iterator

from hf_posenc.eval.comparison.cell import MeasurementRequest
from hf_posenc.eval.comparison.fitting import Fitting
from hf_posenc.eval.lm.native_length import trained_length_of_lm
from hf_posenc.schemes.entry import entries_of
from lab.cells import Scores
from lab.finding import Job
from lab.sweep import DOCUMENTS, MEASURES, documents_of, loaded, scores_of


def by_depth(job: Job) -> Iterator[tuple[float, Scores]]:
    """Score one scheme at one length, at all depths in one pass over the keys."""
    lm = loaded(job.model)
    (entry,) = entries_of(job.settings["entry"])
    length = round(job.settings["length"] * trained_length_of_lm(lm))
    measure = MEASURES | {"keys": job.options["keys"], "depths": job.axis, "seed": DOCUMENTS}
    request = MeasurementRequest(measure, length, True, {}, {}, Fitting.on(lm, DOCUMENTS).fit)
    job.progress(0.0, f"{job.options['task']} at {length:,} tokens")
    documents = documents_of(lm, request, entry, job.options["task"], length, job)
    for depth in job.points:
        yield depth, {name: scores_of(documents, metric, depth) for name, metric in job.options["scores"].items()}
