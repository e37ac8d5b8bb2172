"""Effective context length of a line, with its bootstrap interval over documents.

The rule and its thresholds are those of `hf_posenc.eval.results.effective_length`. The interval draws the same
documents at all lengths; of a loss, those of the unpatched model as well, whose loss at its trained length is the
threshold.
"""

from __future__ import annotations

from hf_posenc.eval.results.bootstrap import Margins, effective_bounds
from hf_posenc.eval.results.comparison import SHARES, Comparison, rows_by_cell
from hf_posenc.eval.results.effective_length import (
    RULER,
    SLACK,
    documents_of,
    effective_lengths,
    reference_of,
)
from hf_posenc.eval.results.gate import gates
from hf_posenc.insight.leaderboard.line import Effective


def effectives(comparison: Comparison, *, seed: int = 0) -> dict[tuple[str, str], Effective]:
    """The effective context lengths by label and task; none of tasks that the unpatched model cannot do."""
    closed = {gate.task for gate in gates(comparison.about) if not gate.open}
    return {
        (one.scheme, one.task): Effective(
            one.threshold, one.length, *(interval(comparison, one.scheme, one.task, one.metric, seed) or (None, None))
        )
        for one in effective_lengths(comparison)
        if one.task not in closed and one.metric == next(iter(comparison.metrics(one.task)))  # that of its line
    }


def interval(comparison: Comparison, label: str, task: str, metric: str, seed: int) -> tuple[int, int] | None:
    """The bootstrap interval of one effective length; None where too few documents are known."""
    rows = rows_by_cell(comparison.rows, task, metric)
    own = {n: documents_of(comparison, row) for (name, n), row in rows.items() if name == label and n is not None}
    if metric in SHARES:
        margins = {n: {name: (c, value - RULER) for name, (c, value) in own[n].items()} for n in own}
        found = Margins.of(margins, share=RULER)
    else:
        reference = reference_of(comparison, rows, label)
        if reference is None:
            return None
        base = documents_of(comparison, reference)
        margins = {
            n: {name: (c, base[name][1] + SLACK - value) for name, (c, value) in own[n].items() if name in base}
            for n in own
        }
        found = Margins.of(margins)
    return effective_bounds(found, seed=seed) if len(found.sums) else None
