"""The plan of a search: which arms on how many windows, decided once, from a budget and the measured speed.

    budget = setup + first look (all families) + rungs of halving + held-out windows

Nothing of it depends on the clock later: a search that was killed, or is repeated, follows the plan that it wrote down.
The clock only cuts it short where the machine has become slower than it was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, log
from typing import Any

from hf_posenc.errors import BudgetTooSmall
from hf_posenc.insight.search.durations import duration, round_up
from hf_posenc.insight.search.halving import ETA, KEPT

FIRST = 2
"""Windows of rung 0."""
FEWEST = 8
"""Held-out windows below which there is no search."""
MOST = 64
"""Held-out windows beyond which the time is better spent on more arms."""
HELD_OUT = 0.35
"""Share of the time that the held-out windows get: all defaults are measured there."""
RESERVE = 0.9
"""Share of the budget that is planned for; the rest is for what was estimated too low."""
SLOWEST = 2.0
"""Guess of a scheme's time over that of the unpatched model, before any scheme was measured."""


@dataclass(frozen=True)
class SearchPlan:
    """What a search measures.

    Attributes:
        arms: labels, those with default options first.
        rungs: windows of each rung of successive halving.
        held_out: windows of the held-out text.
        budget: seconds.
        setup: seconds before the first cell: loading, reading, and the speed measurement.
        pace: family to its seconds a window, as measured; of the unpatched model under ``""``.
        fixed: seconds of any cell besides its windows.
        overhead: wall-clock seconds of the first look over those of its cells.
    """

    arms: tuple[str, ...]
    rungs: tuple[int, ...]
    held_out: int
    budget: float
    setup: float
    pace: dict[str, float]
    fixed: float = 0.0
    overhead: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> SearchPlan:
        """The plan that `to_dict` has written."""
        return cls(**{**stored, "arms": tuple(stored["arms"]), "rungs": tuple(stored["rungs"])})

    @property
    def limit(self) -> float:
        """Seconds of cells that may be measured."""
        return (self.budget - self.setup) / self.overhead

    @property
    def for_held_out(self) -> float:
        """Seconds that the held-out windows are expected to take."""
        return held_out_cost(self.pace, self.fixed, self.held_out)

    def cell(self, label: str, windows: int) -> float:
        """Seconds that an arm is expected to take on some windows; the label of the unpatched model is empty."""
        return self.fixed + windows * self.pace[family_of(label)]

    @property
    def expected(self) -> float:
        """Seconds of cells that the plan is expected to take."""
        pace = [self.pace[family_of(arm)] for arm in self.arms]
        return halving_cost(pace, self.rungs, self.fixed) + self.for_held_out


def planned(
    first: Sequence[str], more: Sequence[str], pace: Mapping[str, float], fixed: float, budget: float, setup: float,
    overhead: float, most: tuple[int, int],
) -> SearchPlan:  # fmt: skip
    """The largest plan that a budget pays for: first more arms, and when there are no more of them, more windows.

    Args:
        first: the families' first arms, which were measured.
        more: further arms, in the order they are taken.
        pace: family to its seconds a window, and ``""`` to that of the unpatched model.
        fixed: seconds of any cell besides its windows.
        budget: seconds in all.
        setup: of them, seconds before the first cell.
        overhead: wall-clock seconds over those of cells.
        most: windows that the development text and the held-out text have room for.

    Raises:
        BudgetTooSmall: the budget does not pay for the smallest plan.
    """
    room = (RESERVE * budget - setup) / overhead
    least = smallest([pace[family_of(arm)] for arm in first], pace, fixed)
    if room < least:
        raise too_small(budget, (least * overhead + setup) / RESERVE, len(first))
    paid = (HELD_OUT * room - held_out_cost(pace, fixed, 0)) / held_out_cost(pace, 0.0, 1)
    held_out = max(FEWEST, min(MOST, most[1], int(paid)))
    room -= held_out_cost(pace, fixed, held_out)
    count, times = 0, 1

    def cost(count: int, times: int) -> float:
        some = [pace[family_of(arm)] for arm in (*first, *more[:count])]
        return halving_cost(some, rungs(len(some), times), fixed)

    while count < len(more) and cost(count + 1, times) <= room:
        count += 1
    while cost(count, times + 1) <= room and sum(rungs(len(first) + count, times)) < most[0]:
        times += 1
    chosen = (*first, *more[:count])
    steps = rungs(len(chosen), times)
    seconds = [pace[family_of(arm)] for arm in chosen]
    while len(steps) > 2 and halving_cost(seconds, steps, fixed) > room:  # many first arms have more than two rungs
        steps = steps[:-1]
    return SearchPlan(chosen, fitted(steps, most[0]), held_out, budget, setup, dict(pace), fixed, overhead)


def rungs(arms: int, times: int = 1) -> tuple[int, ...]:
    """Windows of each rung: `FIRST`, and then so many that each rung takes about the same time.

    Args:
        arms: of the first rung.
        times: multiple of the windows of all rungs but the first.
    """
    count = max(2, 1 + int(log(max(arms, 1), ETA) + 1e-9))
    return (FIRST, *(times * FIRST * (ETA**rung - ETA ** (rung - 1)) for rung in range(1, count)))


def fitted(wanted: Sequence[int], most: int) -> tuple[int, ...]:
    """Rungs of no more windows in all than a text has room for."""
    found: list[int] = []
    for windows in wanted:
        left = most - sum(found)
        if left > 0:
            found.append(min(windows, left))
    return tuple(found)


def halving_cost(pace: Sequence[float], windows: Sequence[int], fixed: float) -> float:
    """Seconds of halving; those that are promoted, with the best defaults, have the pace of all arms on average."""
    mean, alive, total = sum(pace) / len(pace), len(pace), 0.0
    for number in windows:
        total += alive * (fixed + number * mean)
        alive = min(alive, ceil(alive / ETA) + KEPT)
    return total


def held_out_cost(pace: Mapping[str, float], fixed: float, windows: int) -> float:
    """Seconds of held-out windows: every single scheme, the chosen arm, and the unpatched model at two lengths."""
    singles = [seconds for family, seconds in pace.items() if "+" not in family]
    return (len(singles) + 2) * fixed + windows * (sum(singles) + max(pace.values()) + pace[""])


def smallest(first: Sequence[float], pace: Mapping[str, float], fixed: float) -> float:
    """Seconds of the smallest plan: the defaults alone, in two rungs, and the fewest held-out windows."""
    return halving_cost(first, (FIRST, 2 * FIRST), fixed) + held_out_cost(pace, fixed, FEWEST)


def too_small(budget: float, needed: float, schemes: int) -> BudgetTooSmall:
    """The error of a budget that does not pay for the smallest plan."""
    return BudgetTooSmall(
        f"A search over {schemes} schemes and compositions needs some {duration(needed)} at this length on this "
        f"machine, and the budget is {duration(budget)}. Pass --budget {round_up(needed)}, or a shorter target."
    )


def family_of(label: str) -> str:
    """The scheme in an arm's label."""
    return label.partition(":")[0]
