"""Confidence intervals against published tables: so many documents have one degree of freedom less."""

from __future__ import annotations

import math

import pytest

from hf_posenc.eval.results.comparison import interval
from hf_posenc.eval.results.rows import Row

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
