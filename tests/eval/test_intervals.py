"""Intervals against published tables, and the tasks that the lower limit of one says are beyond a model."""

from __future__ import annotations

import math

import pytest

from hf_posenc.eval.report.remarks import tasks_beyond_the_model
from hf_posenc.eval.results.comparison import Comparison, interval
from hf_posenc.eval.results.rows import Row
from hf_posenc.eval.results.store import Record

from .conftest import TRAINED


def comparison(share: float, stderr: float | None, n: int = 8, metric: str = "acc") -> Comparison:
    rows = [
        Row("m", "s", "posenc_vt", TRAINED, None, metric, share, stderr, n),
        Row("m", "s", "posenc_vt", TRAINED, 0.5, metric, 1.0, 0.0, n),  # one depth decides nothing
        Row("m", "s", "posenc_vt", TRAINED, None, "nll", 1.0, 0.1, n),
    ]
    beyond = [Row("m", "s", "posenc_vt", 2 * TRAINED, None, metric, 0.0, 0.0, n)]  # nor does a longer text
    records = [
        Record(str(n), "unpatched", "posenc_vt", n, "done", "", found, 1.0, {})
        for n, found in ((TRAINED, rows), (2 * TRAINED, beyond))
    ]
    schemes = [{"label": "unpatched", "scheme": None}]
    return Comparison({"model": "m", "trained_length": TRAINED, "schemes": schemes}, records)


def test_the_lower_limit_of_the_interval_decides() -> None:
    stats = pytest.importorskip("scipy.stats", reason="comes with lm-eval")
    for share, stderr, n in ((0.0, 0.0, 8), (0.2, 0.1, 8), (0.2, 0.02, 8), (0.06, 0.004, 100), (0.06, 0.006, 100)):
        low, high = (
            stats.t.interval(0.95, n - 1, share, stderr)
            if stderr
            else stats.binomtest(0, n).proportion_ci(method="wilson")
        )
        told = list(tasks_beyond_the_model(comparison(share, stderr, n)))
        assert len(told) == (low <= 0.05)
        assert all(f"95 % interval {100 * max(low, 0.0):.0f} to {100 * high:.0f} %" in sentence for sentence in told)
    assert not list(tasks_beyond_the_model(comparison(1.0, 0.0)))
    assert list(tasks_beyond_the_model(comparison(0.05, None)))
    assert not list(tasks_beyond_the_model(comparison(0.3, None, metric="match")))


# The 97.5 % points of Student's t, as printed in any table of it (NIST/SEMATECH e-Handbook, section 1.3.6.7.2).


def row(n: int, metric: str = "nll", value: float = 2.0, stderr: float | None = 0.1) -> Row:
    return Row("m", "s", "t", 1, None, metric, value, stderr, n)


@pytest.mark.parametrize(("n", "far"), [(3, 0.5615), (8, 0.3244), (16, 0.1936), (100, 0.0370)])
def test_where_all_documents_agree(n: int, far: float) -> None:
    """Wilson's upper limit of no success in n, from 1.96² / (n + 1.96²)."""
    assert interval(row(n, "acc", 0.0, 0.0)) == pytest.approx((0.0, far), abs=1e-4)
    assert interval(row(n, "acc", 1.0, 0.0)) == pytest.approx((1.0 - far, 1.0), abs=1e-4)
    assert interval(row(n, "nll", 0.0, 0.0)) == (0.0, 0.0)  # a loss is no share


@pytest.mark.parametrize("metric", ["acc", "match"])
def test_a_share_lies_between_none_and_all(metric: str) -> None:
    assert interval(row(8, metric, 0.9, 0.3)) == (pytest.approx(0.9 - 2.365 * 0.3, rel=1e-3), 1.0)
    assert interval(row(8, metric, 0.1, 0.3)) == (0.0, pytest.approx(0.1 + 2.365 * 0.3, rel=1e-3))
    low, _ = interval(row(8, "nll", 0.1, 0.3))
    assert low < 0.0
    assert interval(row(8, "ppl", 0.9, 0.3))[1] > 1.0


def test_too_few_documents_have_none() -> None:
    assert interval(row(2)) is None
    assert interval(row(3)) is not None
    assert interval(row(16, stderr=None)) is None


@pytest.mark.parametrize("metric", ["ppl", "word_perplexity"])
@pytest.mark.parametrize(("loss", "error"), [(2.0, 0.1), (6.0, 2.5)])
def test_that_of_a_perplexity_is_the_exponential_of_that_of_the_loss(metric: str, loss: float, error: float) -> None:
    low, high = interval(row(8, "nll", loss, error))
    value = math.exp(loss)
    assert interval(row(8, metric, value, value * error)) == pytest.approx((math.exp(low), math.exp(high)))
