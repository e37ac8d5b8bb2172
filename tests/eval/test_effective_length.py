"""Effective context length: RULER's rule for accuracies, perplexity within 5 % for losses, computed here by hand."""

from __future__ import annotations

from math import log
from statistics import stdev

import pytest

from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.effective_length import effective_lengths, loss_bounds
from hf_posenc.eval.results.rows import DocumentScore, Row
from hf_posenc.eval.results.store import Record

from .made_up import made_up

LENGTHS = (64, 128, 256, 512)


def made(metric: str, values: dict[str, tuple[float, ...]], stderr: float = 0.0, n: int = 40) -> Comparison:
    records = [
        Record(f"{label}{length}", label, "task", length, "done", "",
               [Row("m", label, "task", length, None, metric, value, stderr, n)], 0.0, {})
        for label, line in values.items() for length, value in zip(LENGTHS, line, strict=True)
    ]  # fmt: skip
    return made_up(records, trained_length=128)


def test_accuracies_follow_ruler() -> None:
    """85.6 %, wherever it is reached: at 64 tokens and again at 256."""
    found = effective_lengths(made("acc", {"yarn": (0.86, 0.855, 0.9, 0.3), "none": (0.1, 0.1, 0.1, 0.1)}))
    assert [(one.scheme, one.length, one.threshold) for one in found] == [("yarn", 256, 0.856), ("none", 0, 0.856)]


def test_losses_are_those_of_the_unpatched_model_at_its_trained_length() -> None:
    slack = log(1.05)
    found = effective_lengths(made("nll", {
        "unpatched": (3.1, 3.0, 4.0, 5.0), "yarn": (3.1, 3.0, 3.0 + slack - 1e-6, 3.0 + slack + 1e-6),
    }))  # fmt: skip
    assert [(one.scheme, one.length) for one in found] == [("unpatched", 128), ("yarn", 256)]
    assert found[1].threshold == 3.0 + slack
    alone = effective_lengths(made("nll", {"yarn": (2.9, 2.5, 2.54, 2.6)}))  # its own loss at 128
    assert (alone[0].length, alone[0].threshold) == (256, 2.5 + slack)


def test_the_interval_is_that_of_the_score() -> None:
    (one,) = effective_lengths(made("acc", {"yarn": (0.99, 0.9, 0.84, 0.3)}, stderr=0.03))
    assert (one.length, one.low, one.high) == (128, 64, 256)  # t(39) · 0.03 = 0.061
    (one,) = effective_lengths(made("nll", {"yarn": (3.0, 3.0, 3.02, 3.1)}, stderr=0.02))  # ± 0.040, up to 3.049
    assert (one.length, one.low, one.high) == (256, 128, 256)


def test_losses_are_compared_document_by_document() -> None:
    """Eight documents of very different losses, each a little worse at 512: surely within 5 % of perplexity."""
    comparison = made("nll", {"yarn": (3.0, 3.0, 3.0, 3.02)}, stderr=0.4, n=8)
    gains = [0.01, 0.03] * 4
    for record in comparison.records:
        worse = gains if record.length == 512 else [0.0] * 8
        scores = [
            DocumentScore("task", str(n), str(n), record.length, None, "nll", 1.0 + 4 * n / 7 + extra)
            for n, extra in enumerate(worse)
        ]
        object.__setattr__(record, "documents", scores)
    (one,) = effective_lengths(comparison)
    assert (one.length, one.low, one.high) == (512, 512, 512)
    row, reference = (next(r for r in comparison.rows if r.length == n) for n in (512, 128))
    half = 2.364624 * stdev(gains) / 8**0.5  # t of 7 degrees of freedom, from tables
    assert loss_bounds(comparison, row, reference)[1:] == pytest.approx((3.02 - half, 3.02 + half), abs=1e-6)
