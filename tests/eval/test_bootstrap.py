"""Bootstrap interval of the effective context length: against a plain loop, its coverage, and what it shares."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest

from hf_posenc.eval.results import bootstrap as module
from hf_posenc.eval.results.bootstrap import Margins, effective_bounds
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


def test_too_few_documents_have_none() -> None:
    assert effective_bounds(margins(np.ones((2, 2)))) is None


def test_clusters_are_drawn_whole() -> None:
    """Four windows of each of ten books have the interval of ten documents; taken for forty, a narrower one."""
    books = np.array([0.1, -0.02])[:, None] + 0.15 * np.random.default_rng(4).normal(size=(2, 10))
    clusters = [f"b{number}" for number in range(10) for _ in range(4)]
    found = margins(np.repeat(books, 4, axis=1), clusters)
    assert len(found.sums) == 10
    assert effective_bounds(found) == effective_bounds(margins(books))


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
    """With 16 documents the effective length is covered."""
    monkeypatch.setattr(module, "RESAMPLES", 499)
    rng, count, trials, covered = np.random.default_rng(8), 16, 120, 0
    true = np.array([0.1, 0.04, -0.05, -0.3])
    for trial in range(trials):
        table = true[:, None] + 0.12 * rng.normal(size=(4, count)) + 0.15 * rng.normal(size=count)
        low, high = effective_bounds(margins(table), seed=trial)
        covered += low <= 512 <= high
    assert covered >= 0.92 * trials
