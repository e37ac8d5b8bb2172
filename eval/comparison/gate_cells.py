"""Cells in front of retrieval tasks: the unpatched model at its trained length, see `hf_posenc.eval.results.gate`."""

from __future__ import annotations

from collections.abc import Sequence

from hf_posenc.eval.catalogue import sweeps
from hf_posenc.eval.comparison.cell import Cell, MeasurementRequest
from hf_posenc.schemes.entry import UNPATCHED, Entry

UNGATED = (
    "posenc_copy_gain", "posenc_docs", "posenc_key_tokens", "posenc_mlm", "posenc_mlm_recall", "posenc_ppl",
    "posenc_sliding_ppl",
)  # fmt: skip
"""Our tasks over lengths that retrieve nothing: their scores are losses, or shares that every model has some of."""


def gate_cells(request: MeasurementRequest, entries: Sequence[Entry], tasks: Sequence[str], trained: int) -> list[Cell]:
    """The baseline at ``trained`` tokens on every retrieval task; none if no length of the comparison reaches there."""
    if trained > request.longest:
        return []
    baseline = next((entry for entry in entries if entry.scheme is None), Entry(UNPATCHED, None))
    return [request.cell(baseline, task, [trained]) for task in tasks if sweeps(task) and task not in UNGATED]
