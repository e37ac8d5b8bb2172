"""Successive halving on planted losses, against a second form of it in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from hf_posenc.insight.search.halving import Halving, OutOfTime, chosen, halve

RUNGS = (2, 4, 12)
ARMS = [f"arm {number}" for number in range(20)]
DEFAULTS = ARMS[15:]


def planted(seed: int, noise: float) -> np.ndarray:
    """Losses ``[arm, window]``: better arms first, the difficulty of windows in all of them, and noise."""
    draw = np.random.default_rng(seed)
    means, windows = np.linspace(2.0, 3.0, len(ARMS)), draw.normal(0.0, 0.5, sum(RUNGS))
    return means[:, None] + windows + draw.normal(0.0, noise, (len(ARMS), sum(RUNGS)))


def measure_of(losses: np.ndarray):
    """Measure from the planted losses."""
    ends = np.cumsum(RUNGS)

    def measure(arm: str, rung: int) -> dict[str, float]:
        row, start = losses[ARMS.index(arm)], ends[rung] - RUNGS[rung]
        return {f"{rung}: {n}": float(row[n]) for n in range(start, ends[rung])}

    return measure


def survivors_of(losses: np.ndarray) -> list[list[str]]:
    """The arms of each rung by a sort of their cumulative means: another form of the same rule."""
    alive, found = np.arange(len(ARMS)), []
    for end in np.cumsum(RUNGS):
        order = alive[np.argsort(losses[alive, :end].mean(1))]
        found.append([ARMS[number] for number in order])
        keep = order[: -(-len(order) // 3)]
        best = [number for number in order if ARMS[number] in DEFAULTS][:4]
        alive = np.array([number for number in order if number in keep or number in best])
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0.01, 0.5])
def test_the_right_arms_are_promoted(seed: int, noise: float) -> None:
    losses = planted(seed, noise)
    found = halve(ARMS, DEFAULTS, len(RUNGS), measure_of(losses))
    assert found.survivors == survivors_of(losses)
    assert any(arm in DEFAULTS for arm in found.survivors[-1])
    if noise == 0.01:  # the best arm stays to the end, and is measured on all windows
        assert found.score(ARMS[0]) == pytest.approx(losses[0].mean())
        assert chosen(found, DEFAULTS) == ARMS[0]


def test_an_arm_that_is_not_clearly_better_gives_way_to_the_default() -> None:
    windows = [f"{number}" for number in range(8)]
    default = dict.fromkeys(windows, 2.0)
    wavering = {window: 1.9 + 0.5 * (-1) ** number for number, window in enumerate(windows)}  # error 0.19
    steady = {window: 1.9 + 0.05 * (-1) ** number for number, window in enumerate(windows)}  # error 0.019
    for other, wanted in ((wavering, "default"), (steady, "other")):
        found = Halving({"other": other, "default": default}, [["other", "default"]])
        assert chosen(found, ["default"]) == wanted


def test_an_arm_that_computes_the_same_is_dropped() -> None:
    losses = planted(0, 0.1)
    losses[3] = losses[0]
    found = halve(ARMS, DEFAULTS, len(RUNGS), measure_of(losses))
    assert found.duplicates == {ARMS[3]: ARMS[0]}
    assert all(ARMS[3] not in rung for rung in found.survivors)


def test_a_refused_arm_is_out() -> None:
    losses = measure_of(planted(0, 0.01))
    found = halve(ARMS, DEFAULTS, 3, lambda arm, rung: None if arm == ARMS[0] else losses(arm, rung))
    assert found.refused == [ARMS[0]]
    assert chosen(found, DEFAULTS) == ARMS[1]


def test_a_rung_that_was_cut_has_no_say() -> None:
    losses, measured = measure_of(planted(0, 0.01)), []

    def measure(arm: str, rung: int) -> dict[str, float]:
        if rung == 1 and len(measured) == 3:
            raise OutOfTime
        measured.append(arm) if rung == 1 else None
        return losses(arm, rung)

    found = halve(ARMS, DEFAULTS, 3, measure)
    assert found.cut
    assert len(found.survivors) == 1
    assert {len(windows) for windows in found.losses.values()} == {RUNGS[0]}


def test_a_rung_that_no_arm_could_be_measured_on_has_no_say() -> None:
    losses = measure_of(planted(0, 0.01))
    found = halve(ARMS, DEFAULTS, 3, lambda arm, rung: None if rung == 2 else losses(arm, rung))
    assert (found.unmeasured, found.cut, found.refused) == (2, False, [])
    assert len(found.survivors) == 2
    assert chosen(found, DEFAULTS) == ARMS[0]
