"""The verdict on a finding from its raw cells: against scipy's paired test, with swapped orders as negative control."""

from __future__ import annotations

import random

import pytest
from scipy import stats
from verdict import Cells, Claim, Metric, Score, able, better, judge, same, verdict_on

HARDNESS = [random.Random(0).uniform(1.0, 5.0) for _ in range(24)]


LOSS, ACCURACY = Metric("loss"), Metric("accuracy", "share", True)


def cell(variant: str, values: list[float], *, at: float = 4.0, seed: int = 0, metric: Metric = LOSS) -> Cells:
    """A cell with one document for each value."""
    scores = [Score(str(number), str(number), value) for number, value in enumerate(values)]
    return {(variant, at, seed): {metric.name: scores}}


def together(*cells: Cells) -> Cells:
    """Several cells as one table."""
    return {slot: scores for one in cells for slot, scores in one.items()}


def noisy(shift: float, seed: int, spread: float = 0.1) -> list[float]:
    """Losses of documents that are unlike each other, ``shift`` above those of another variant."""
    draw = random.Random(seed)
    return [hard + shift + draw.gauss(0.0, spread) for hard in HARDNESS]


GOOD, BAD = noisy(0.0, 1), noisy(0.3, 2)
TWO = together(cell("good", GOOD), cell("bad", BAD))


def verdict(claims: list[Claim], cells: Cells, metric: Metric = LOSS) -> str:
    """The verdict on claims."""
    return verdict_on(judge(claims, [metric], cells))


def test_true_orders_are_reproduced_and_swapped_ones_are_not() -> None:
    assert verdict([better("good", "bad", 4.0)], TWO) == "reproduced"
    assert verdict([better("bad", "good", 4.0)], TWO) == "not reproduced"


def test_what_cannot_be_told_apart_is_not_decidable() -> None:
    cells = together(TWO, cell("twin", noisy(0.0, 3)))
    assert verdict([better("good", "twin", 4.0)], cells) == "not decidable at this size"
    assert verdict([better("good", "bad", 4.0), better("good", "twin", 4.0)], cells) == "not decidable at this size"
    assert verdict([better("bad", "good", 4.0), better("good", "twin", 4.0)], cells) == "not reproduced"


def test_interval_and_p_value_are_those_of_scipy() -> None:
    (found,) = judge([better("good", "bad", 4.0)], [LOSS], TWO)
    test = stats.ttest_rel(BAD, GOOD)
    interval = test.confidence_interval(0.95)
    assert found.p == pytest.approx(test.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_errors_of_documents_and_seeds_add_as_welchs_do() -> None:
    """With scipy's Welch test of two samples that have the two errors."""
    draw = random.Random(3)
    gains = [[0.3 + draw.gauss(0, 0.1) for _ in range(9)] for _ in range(4)]  # [seed, document]
    cells = [cell("a", [0.0] * 9, seed=seed) for seed in range(4)]
    cells += [cell("b", row, seed=seed) for seed, row in enumerate(gains)]
    (found,) = judge([better("a", "b", 4.0)], [LOSS], together(*cells))
    documents, seeds = [sum(column) / 4 for column in zip(*gains, strict=True)], [sum(row) / 9 for row in gains]
    mean = sum(seeds) / 4
    test = stats.ttest_ind(documents, [value - mean for value in seeds], equal_var=False)
    assert found.p == pytest.approx(test.pvalue, rel=1e-9)


def test_equivalence_needs_the_whole_interval_inside() -> None:
    cells = together(TWO, cell("twin", noisy(0.0, 3)), cell("copy", GOOD))
    assert verdict([same("good", "twin", 4.0, within=0.2)], cells) == "reproduced"
    assert verdict([same("good", "twin", 4.0, within=0.01)], cells) == "not decidable at this size"
    assert verdict([same("good", "bad", 4.0, within=0.2)], cells) == "not reproduced"
    assert verdict([same("good", "copy", 4.0, within=0.001)], cells) == "reproduced"


@pytest.mark.parametrize(("n", "right"), [(8, 0), (8, 8), (8, 1), (8, 7), (256, 256), (30, 0)])
@pytest.mark.parametrize("least", [0.02, 0.5, 0.9])
def test_an_ability_has_the_interval_of_a_share(n: int, right: int, least: float) -> None:
    """Wilson's as scipy has it where all documents agree; never below none or above all."""
    values = [1.0] * right + [0.0] * (n - right)
    (found,) = judge([able("a", 4.0, least)], [ACCURACY], cell("a", values, metric=ACCURACY))
    assert found.low is not None
    assert found.high is not None
    assert found.p is not None
    assert 0.0 <= found.low <= right / n <= found.high <= 1.0
    if right in (0, n):
        wilson = stats.binomtest(right, n).proportion_ci(method="wilson")
        assert (found.low, found.high) == pytest.approx((wilson.low, wilson.high), abs=1e-9)
        z = (right / n - least) / (least * (1 - least) / n) ** 0.5
        assert found.p == pytest.approx(2 * stats.norm.sf(abs(z)), rel=1e-9)
        assert (found.p < 0.05) == (not found.low <= least <= found.high)


def test_windows_of_one_text_are_one_piece_of_evidence() -> None:
    cells = {
        slot: {"loss": [score._replace(cluster=str(int(score.document) // 12)) for score in scores["loss"]]}
        for slot, scores in TWO.items()
    }
    assert verdict([better("good", "bad", 4.0)], cells) == "not decidable at this size"
