"""Progress knows what its cells cost: estimates follow task, length and scheme."""

from __future__ import annotations

import pytest

from hf_posenc.eval.comparison.progress import Estimates, RemainingTime, Slot, growth, part_of


def test_estimates_follow_task_length_and_scheme() -> None:
    """Quadratic in the length, and one scheme three times as slow: both are found from a few cells."""
    known = [
        (Slot("ppl", length, scheme), pace * length**2)
        for length in (128, 256) for scheme, pace in (("pi", 1.0), ("yarn", 1.0), ("slow", 3.0))
    ]  # fmt: skip
    estimates = Estimates(known)
    found = estimates.seconds([Slot("ppl", 1024, "pi"), Slot("ppl", 1024, "slow"), Slot("ppl", 256, "new")])
    assert found == pytest.approx([1024**2, 3 * 1024**2, 256**2])
    assert Estimates([]).seconds([Slot("a", 10, ""), Slot("b", 30, "")])[1] == pytest.approx(0.03)
    slow = Estimates([*known, (Slot("ppl", 512, "slow"), 3.0 * 512**2)]).seconds([Slot("ppl", 512, "pi")])
    assert slow == pytest.approx([512**2], rel=0.01)  # from the slow one's time, as others take a third of that
    assert estimates.seconds([Slot("other", 512, "pi")])[0] > 0


def test_growth_is_the_exponent_of_time_in_length() -> None:
    assert growth({128: 1.0, 512: 4.0}) == pytest.approx(1.0)
    assert growth({128: 1.0, 512: 16.0}) == pytest.approx(2.0)
    assert growth({128: 1.0}) == 1.0  # a single length shows nothing: linear is assumed


def test_the_fraction_is_that_of_the_time() -> None:
    """Of two schemes, the second three times as slow at both lengths; known from the first length on."""
    fractions: list[float] = []
    slots = [Slot("t", n, s) for n in (100, 200) for s in ("fast", "slow")]
    remaining = RemainingTime(slots, [], lambda done, doing: fractions.append(done))
    for seconds in (1.0, 3.0, 2.0, 6.0):
        remaining.begin("")
        remaining.end(seconds)
    assert fractions[-3] == pytest.approx(6 / 12, abs=0.02)  # before the last cell, which takes half of the time
    assert fractions[-1] == 1.0
    assert fractions == sorted(fractions)


def test_a_part_of_the_work() -> None:
    seen: list[tuple[float, str]] = []
    report = part_of(lambda done, doing: seen.append((done, doing)), 0.5, 0.25, "second: ")
    report(0.0, "a")
    report(1.0, "b")
    assert seen == [(0.5, "second: a"), (0.75, "second: b")]
