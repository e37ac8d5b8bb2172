"""Successive halving: measure all arms on few windows, the better third on more, until one is left.

    rung 0   A arms      on n₀ windows each
    rung 1   A / 3 arms  on n₁ further ones       an arm's score: its mean loss over all windows it was measured on
    …

The best four of the schemes with default options are always promoted: schemes differ more from text to text than the
options of one do, so few windows may not decide between them. An arm with other options is chosen only if it is better
than the best default by more than a standard error of their paired difference (the one-standard-error rule of Breiman
et al. 1984, "Classification and Regression Trees", section 3.4.3): the smallest of many noisy means is smaller than it
ought to be.

Jamieson, Talwalkar 2015, arXiv:1502.07943, algorithm 1, with η = 2; η = 3 as in Li et al. 2017, Hyperband,
arXiv:1603.06560.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt
from statistics import fmean, stdev

ETA = 3
KEPT = 4
"""Defaults that are promoted in any case."""
Losses = Mapping[str, float]
"""Loss of each window, by the name of the window."""
Measure = Callable[[str, int], Losses | None]
"""Arm and rung to the losses of the windows of that rung; None where the arm is refused."""


class OutOfTime(Exception):
    """The budget is spent: raised by `Measure`, and caught by the search."""


@dataclass
class Halving:
    """What successive halving has measured.

    Attributes:
        losses: arm to its loss on each window.
        survivors: the arms of each finished rung, best first.
        refused: arms that could not be measured.
        duplicates: arm to an earlier one that computes the same: their losses are equal to the last digit.
        cut: whether the time ended before the last rung.
        unmeasured: number from 0 of the rung on which no arm could be measured, where there is one; it is the last.
    """

    losses: dict[str, dict[str, float]] = field(default_factory=dict)
    survivors: list[list[str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    duplicates: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    unmeasured: int | None = None

    def score(self, arm: str) -> float:
        """Mean loss of an arm over the windows it was measured on."""
        return fmean(self.losses[arm].values())

    def rung_of(self, arm: str) -> int:
        """The last finished rung that an arm was measured on."""
        return max((rung for rung, arms in enumerate(self.survivors) if arm in arms), default=0)


def halve(arms: Sequence[str], defaults: Sequence[str], rungs: int, measure: Measure) -> Halving:
    """Measure arms rung by rung, and promote the better third of each, with the best defaults.

    Ends at a rung on which no arm could be measured; what the earlier ones have found is kept.

    Args:
        arms: names, the defaults among them.
        defaults: arms of which the best `KEPT` are always promoted.
        rungs: at least one.
        measure: an arm on the windows of a rung.
    """
    found, alive = Halving(), list(arms)
    for rung in range(rungs):
        measured: dict[str, Losses | None] = {}
        try:
            for arm in alive:
                measured[arm] = measure(arm, rung)
        except OutOfTime:
            found.cut = True  # a rung of which a part was measured would favour that part
            return found
        if all(losses is None for losses in measured.values()):
            found.unmeasured = rung  # what is wrong is not the arms: they were measured on the rung before
            return found
        found.refused += [arm for arm, losses in measured.items() if losses is None]
        for arm, losses in measured.items():
            if losses is not None:
                found.losses.setdefault(arm, {}).update(losses)
        duplicates = duplicates_of([arm for arm in alive if measured[arm] is not None], found.losses)
        found.duplicates |= duplicates
        ranked = sorted((arm for arm in alive if measured[arm] is not None and arm not in duplicates), key=found.score)
        found.survivors.append(ranked)
        alive = promoted(ranked, defaults)
    return found


def duplicates_of(arms: Sequence[str], losses: Mapping[str, Losses]) -> dict[str, str]:
    """Arms whose losses are those of an arm before them, with that arm: a default spelled out, or without effect."""
    first: dict[tuple[tuple[str, float], ...], str] = {}
    every = [(arm, first.setdefault(tuple(sorted(losses[arm].items())), arm)) for arm in arms]
    return {arm: earlier for arm, earlier in every if earlier != arm}


def promoted(ranked: Sequence[str], defaults: Sequence[str]) -> list[str]:
    """The better third, and the best defaults, in the order of their scores."""
    kept = {*ranked[: ceil(len(ranked) / ETA)], *[arm for arm in ranked if arm in defaults][:KEPT]}
    return [arm for arm in ranked if arm in kept]


def best_of(ranked: Sequence[str], names: Sequence[str]) -> str | None:
    """The first of ``ranked`` that is among ``names``."""
    return next((arm for arm in ranked if arm in names), None)


def chosen(found: Halving, defaults: Sequence[str]) -> str:
    """The arm that the last finished rung speaks for: the best, or the best default where it is not clearly worse."""
    ranked = found.survivors[-1]
    best, default = ranked[0], best_of(ranked, defaults)
    if default is None or best == default:
        return best
    mean, error = paired_difference(found.losses[best], found.losses[default])
    return best if mean + error < 0 else default


def paired_difference(ours: Losses, theirs: Losses) -> tuple[float, float]:
    """Mean of ours − theirs over the windows that both have, and its standard error; 0 for a single window."""
    values = [ours[window] - theirs[window] for window in ours if window in theirs]
    return fmean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
