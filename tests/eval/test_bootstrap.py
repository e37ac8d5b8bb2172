"""Bootstrap intervals: against scipy and a plain loop, their coverage, and where they must not be trusted."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest
from scipy.stats import bootstrap, t

from hf_posenc.eval.results import bootstrap as module
from hf_posenc.eval.results.bootstrap import Margins, difference_bounds, effective_bounds, mean_bounds
from hf_posenc.eval.results.documents import DocumentScore
from hf_posenc.eval.results.effective_length import RULER

LENGTHS = (256, 512, 1024, 2048)


def names(count: int) -> list[str]:
    return [f"d{number}" for number in range(count)]


def margins(table: np.ndarray, clusters: list[str] | None = None, share: float | None = None) -> Margins:
    """Margins ``[length, document]``."""
    own = clusters or names(table.shape[1])
    return Margins.of(
        {n: dict(zip(names(len(row)), zip(own, row, strict=True), strict=True)) for n, row in
         zip(LENGTHS, table.tolist(), strict=False)}, share=share,
    )  # fmt: skip


def plain(table: np.ndarray, seed: int = 0, rounds: int = 2000) -> tuple[int, int]:
    """The percentile interval by a loop, without scipy."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(rounds):
        means = table[:, rng.integers(0, table.shape[1], table.shape[1])].mean(1)
        found.append(max([n for n, mean in zip(LENGTHS, means, strict=False) if mean >= 0], default=0))
    low, high = np.quantile(found, [0.025, 0.975], method="inverted_cdf")
    return int(low), int(high)


def test_a_mean_is_scipys_bca() -> None:
    values = np.random.default_rng(3).lognormal(size=20)
    expected = bootstrap(
        (values,), np.mean, n_resamples=9999, method="BCa", rng=np.random.default_rng(0)
    ).confidence_interval
    assert mean_bounds(values.tolist(), names(20)) == pytest.approx(tuple(expected), rel=1e-12)


def test_clusters_are_drawn_whole() -> None:
    """Four windows of each of ten books that differ: as wide as ten documents, and twice as wide as forty."""
    books = np.random.default_rng(4).normal(size=10)
    values = np.repeat(books, 4)
    clusters = [f"b{number}" for number in range(10) for _ in range(4)]
    low, high = mean_bounds(values.tolist(), clusters)
    assert (low, high) == pytest.approx(mean_bounds(books.tolist(), names(10)), rel=1e-9)
    alone = mean_bounds(values.tolist(), names(40))
    assert (high - low) > 1.7 * (alone[1] - alone[0])


def test_clusters_of_unlike_size_weigh_documents() -> None:
    values, clusters = [0.0, 1.0, 2.0, 10.0, 10.0, 10.0], ["a", "b", "c", "d", "d", "d"]
    low, high = mean_bounds(values, clusters)
    assert low < 33 / 6 < high
    assert high == pytest.approx(10.0, abs=1.5)  # draws of the large cluster alone


def test_too_few_or_equal_documents_have_none() -> None:
    assert mean_bounds([1.0, 2.0], names(2)) is None
    assert mean_bounds([0.5] * 8, names(8)) is None
    assert effective_bounds(margins(np.ones((2, 2)))) is None


def test_seeds_change_the_draws_and_nothing_else() -> None:
    values = np.random.default_rng(5).normal(size=12).tolist()
    assert mean_bounds(values, names(12)) == mean_bounds(values, names(12))
    one, other = mean_bounds(values, names(12), seed=1), mean_bounds(values, names(12), seed=2)
    assert one != other
    assert one == pytest.approx(other, abs=0.05)


def test_a_difference_pairs_documents() -> None:
    rng = np.random.default_rng(6)
    hard, gain = rng.normal(size=16), 0.1 + 0.02 * rng.normal(size=16)

    def scores(values: np.ndarray) -> list[DocumentScore]:
        return [DocumentScore("t", n, n, 256, None, "nll", v) for n, v in zip(names(16), values.tolist(), strict=True)]

    low, high = difference_bounds(scores(hard + gain), scores(hard))
    assert (low, high) == mean_bounds(
        [score.value - other.value for score, other in zip(scores(hard + gain), scores(hard), strict=True)], names(16)
    )
    assert 0.05 < low < 0.1 < high < 0.15
    unpaired = mean_bounds((hard + gain).tolist(), names(16))
    assert unpaired[1] - unpaired[0] > 10 * (high - low)  # control: what the pairing is for
    assert difference_bounds(scores(hard), []) is None


@pytest.mark.parametrize("seed", range(4))
def test_effective_length_is_that_of_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = np.array([0.1, 0.03, -0.02, -0.3])[:, None] + 0.15 * rng.normal(size=(4, 12)) + 0.1 * rng.normal(size=12)
    assert effective_bounds(margins(table)) == plain(table)


def test_lengths_share_their_draws() -> None:
    """Two lengths that differ by a constant: drawn apart, one would sometimes pass where the other must."""
    near = 0.2 * np.random.default_rng(7).normal(size=20)
    table = np.stack([near, near + 1e-9])  # the longer one passes whenever the shorter one does
    drawn = np.random.default_rng(0).integers(0, 20, (2000, 20))
    found = margins(table).passing(drawn, np.array([nan, nan]))
    assert set(found.tolist()) == {0, 2}


def test_where_all_documents_agree_wilson_decides() -> None:
    """All of 8 keys found do not show 85.6 %; all of 24 do (their lower limits are 67.6 % and 86.2 %)."""
    for keys, expected in ((8, (0, 512)), (24, (512, 512))):
        assert effective_bounds(margins(np.full((2, keys), 1.0 - RULER), share=RULER)) == expected
    assert effective_bounds(margins(np.full((2, 8), 1.0 - RULER))) == (512, 512)  # control: without the rule


def test_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 16 documents the effective length is covered; skewed means are not, by BCa no better than by Student's t."""
    monkeypatch.setattr(module, "RESAMPLES", 499)
    rng, count, trials = np.random.default_rng(8), 16, 120
    true, covered = np.array([0.1, 0.04, -0.05, -0.3]), dict.fromkeys(("effective", "t", "BCa"), 0)
    for trial in range(trials):
        table = true[:, None] + 0.12 * rng.normal(size=(4, count)) + 0.15 * rng.normal(size=count)
        low, high = effective_bounds(margins(table), seed=trial)
        covered["effective"] += low <= 512 <= high
        noise = rng.lognormal(size=count) - np.exp(0.5)
        half = t.ppf(0.975, count - 1) * noise.std(ddof=1) / count**0.5
        covered["t"] += bool(abs(noise.mean()) <= half)
        low, high = mean_bounds(noise.tolist(), names(count), seed=trial)
        covered["BCa"] += low <= 0.0 <= high
    assert covered["effective"] >= 0.92 * trials
    assert covered["BCa"] <= covered["t"] + 0.03 * trials < 0.95 * trials
