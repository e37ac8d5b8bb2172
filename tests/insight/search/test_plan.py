"""The plan of a search: what a budget pays for, and what it does not."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from hf_posenc.errors import BudgetTooSmall, OptionOutOfRange
from hf_posenc.insight.search.durations import duration, seconds_of
from hf_posenc.insight.search.plan import FEWEST, SearchPlan, planned, rungs

FIRST = ["rerope", "yarn", "window", "rerope+logn"]
MORE = [f"{family}:option={number}" for number in range(60) for family in FIRST]
PACE = {"": 0.1, "rerope": 0.3, "yarn": 0.1, "window": 0.1, "rerope+logn": 0.3}
FIXED = 0.05


def plan(budget: float, overhead: float = 1.0, most: tuple[int, int] = (500, 500)) -> SearchPlan:
    return planned(FIRST, MORE, PACE, FIXED, budget, 5.0, overhead, most)


def seconds(found: SearchPlan) -> float:
    """Seconds of a plan, counted arm by arm; the arms of later rungs are those with the mean pace."""
    pace = [PACE[arm.partition(":")[0]] for arm in found.arms]
    alive, total = len(pace), 0.0
    for windows in found.rungs:
        total += sum([FIXED + windows * sum(pace) / len(pace)] * alive)
        alive = min(alive, -(-alive // 3) + 4)
    singles = PACE["rerope"] + PACE["yarn"] + PACE["window"]
    return total + 6 * FIXED + found.held_out * (singles + PACE["rerope+logn"] + 2 * PACE[""])


def test_a_plan_keeps_its_budget_and_grows_with_it() -> None:
    plans = [plan(budget) for budget in (25, 60, 300, 1200, 10_000)]
    for found in plans:
        assert seconds(found) + found.setup <= found.budget
        assert found.expected == pytest.approx(seconds(found))
    for less, more in pairwise(plans):
        assert (len(more.arms), sum(more.rungs)) > (len(less.arms), sum(less.rungs))
        assert more.held_out >= less.held_out >= FEWEST
    assert set(plans[-1].arms) == {*FIRST, *MORE}


@pytest.mark.parametrize("more", range(0, 60, 5))
def test_many_first_arms_do_not_exceed_a_small_budget(more: int) -> None:
    """Thirty of them have four rungs, of which the smallest budget pays for two."""
    first = [f"scheme{number}" for number in range(30)]
    pace = {"": 0.1} | dict.fromkeys(first, 0.2)
    with pytest.raises(BudgetTooSmall) as caught:
        planned(first, [], pace, FIXED, 10, 5.0, 1.0, (500, 500))
    enough = seconds_of(str(caught.value).partition("--budget ")[2].partition(",")[0])
    found = planned(first, [], pace, FIXED, enough + more, 5.0, 1.0, (500, 500))
    assert found.expected + found.setup <= 0.9 * found.budget


def test_overhead_makes_a_plan_smaller() -> None:
    assert len(plan(300, overhead=2.0).arms) < len(plan(300).arms)
    assert 2.0 * seconds(plan(300, overhead=2.0)) + 5.0 <= 300


def test_a_text_bounds_the_windows() -> None:
    found = plan(10_000, most=(10, 9))
    assert sum(found.rungs) == 10
    assert found.held_out == 9


def test_rungs_take_about_the_same_time() -> None:
    assert rungs(27) == (2, 4, 12, 36)
    assert rungs(27, times=2) == (2, 8, 24, 72)
    assert len(rungs(3)) == 2


def test_a_budget_that_is_too_small_is_refused_with_one_that_is_not() -> None:
    with pytest.raises(BudgetTooSmall, match=r"needs some .* Pass --budget (\d+)s") as caught:
        plan(12)
    enough = float(str(caught.value).partition("--budget ")[2].partition("s")[0])
    assert plan(enough + 1).held_out == FEWEST


def test_a_plan_is_read_as_it_was_written() -> None:
    found = plan(60)
    assert SearchPlan.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize(
    ("given", "wanted"), [("10m", 600), ("90s", 90), ("90", 90), ("1h30m", 5400), ("1.5m", 90), (45, 45), (2.5, 2.5)]
)
def test_durations_are_parsed(given: str | float, wanted: float) -> None:
    assert seconds_of(given) == wanted


@pytest.mark.parametrize("given", ["", "0", "0m", "-5m", "ten", "10x", "m", True, None, float("nan")])
def test_what_is_no_duration_is_refused(given: object) -> None:
    with pytest.raises(OptionOutOfRange, match="10m"):
        seconds_of(given)  # type: ignore[arg-type]


def test_durations_in_words() -> None:
    assert [duration(x) for x in (0.42, 45.3, 200, 7500)] == ["0.4 s", "45 s", "3 min 20 s", "2 h 5 min"]
