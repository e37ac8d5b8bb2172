"""Bars of a finding's picture: 95 % intervals of single means, over clusters of documents."""

from __future__ import annotations

from statistics import fmean, stdev

import pytest

from hf_posenc.insight.findings import DocumentScore, FindingCell, Metric
from hf_posenc.insight.findings.claims import ACCURACY, LOSS
from hf_posenc.insight.findings.picture import bars
from hf_posenc.insight.findings.reproduction import mean_of


def interval_of(values: list[float], metric: Metric, clusters: int) -> tuple[float, float]:
    """Lower and upper end of the bar of a mean; documents take turns in clusters."""
    scores = [DocumentScore(f"{n}", f"{n % clusters}", value) for n, value in enumerate(values)]
    mean = mean_of([FindingCell("a", 1.0, 0, {metric.name: scores}, 0.0, 0.0, {})], metric.name)
    (below,), (above,) = bars([mean], metric)
    return mean.mean - below, mean.mean + above


def test_bars_count_books_and_not_their_windows() -> None:
    stats = pytest.importorskip("scipy.stats")
    books = [2.0, 2.4, 3.1, 3.3]
    half = stats.t.ppf(0.975, 3) * stdev(books) / 2
    found = interval_of(books * 8, LOSS, clusters=4)
    assert found == pytest.approx((fmean(books) - half, fmean(books) + half), rel=1e-9)


def test_bars_of_shares_stay_between_none_and_all() -> None:
    stats = pytest.importorskip("scipy.stats")
    low, high = interval_of([1.0, 0.0, 1.0, 0.0], ACCURACY, clusters=4)
    assert (low, high) == (0.0, 1.0)
    for value in (0.0, 1.0):
        wilson = stats.binomtest(int(8 * value), 8).proportion_ci(method="wilson")
        assert interval_of([value] * 8, ACCURACY, clusters=8) == pytest.approx((wilson.low, wilson.high), abs=1e-9)
