"""The steps of a search: first look, halving, and the held-out windows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from statistics import fmean
from typing import Any

from hf_posenc.core.progress import ProgressCallback
from hf_posenc.errors import BadComparison
from hf_posenc.eval.results.documents import DocumentScore
from hf_posenc.eval.results.paired import ROUNDING
from hf_posenc.eval.texts.measured_text import MeasuredText
from hf_posenc.insight.search.arms import defaults_of, drawn
from hf_posenc.insight.search.durations import duration
from hf_posenc.insight.search.halving import Halving, halve
from hf_posenc.insight.search.plan import (
    FEWEST,
    FIRST,
    SLOWEST,
    SearchPlan,
    planned,
    smallest,
    too_small,
)
from hf_posenc.insight.search.two_texts import room_of_both
from hf_posenc.insight.search.windows_loss import WindowLoss, losses_of
from hf_posenc.schemes.entry import UNPATCHED, Entry

UNCHANGED = Entry(UNPATCHED, None)
WARM, LAST = 998, 999
"""Numbers in place of a rung, for windows of their own: the speed measurement, and the held-out windows."""
TIMED = 4 * FIRST
"""Windows of a second cell, whose time tells that of a window from that of a cell."""


@dataclass
class Search:
    """A search that is under way: what all its steps need.

    Attributes:
        measure: losses of arms.
        text, held_out: to choose on, and to judge by.
        target, trained: lengths in tokens.
        budget: seconds.
        seed: of windows and arms.
        started: when the search began, by `time.monotonic`.
        progress: called with the completed fraction and a description of the current step.
    """

    measure: WindowLoss
    text: MeasuredText
    held_out: MeasuredText
    target: int
    trained: int
    budget: float
    seed: int
    started: float
    progress: ProgressCallback

    @property
    def factor(self) -> float:
        """Target over trained length."""
        return self.target / self.trained

    def first_look(self, found: Sequence[Entry], plan: SearchPlan | None) -> SearchPlan:
        """Measure every family with its defaults, and plan the rest: the better half of them gets further arms.

        Args:
            found: the families.
            plan: as an earlier run wrote it down; None to make one.

        Raises:
            BudgetTooSmall: the budget does not pay for the smallest plan.
            BadComparison: no scheme could be measured.
        """
        measure, (each, fixed, setup) = self.measure, self.speed()
        pace = {"": each}
        guess = pace | {entry.label: SLOWEST * pace[""] for entry in found}
        scores: dict[str, float] = {}
        begun = time.monotonic()
        for number, entry in enumerate(found):
            if plan is None:
                self.check_budget(found, guess, fixed, setup)
            self.progress(0.2 * number / len(found), f"first look: {entry.label} ({number + 1} of {len(found)})")
            before = measure.spent
            losses = measure(entry, self.text, FIRST, 0)
            guess[entry.label] = max((measure.spent - before - fixed) / FIRST, each / SLOWEST)
            if losses and unchanged(losses, measure(UNCHANGED, self.text, FIRST, 0) or []):
                measure.reasons[entry.label] = "It changes nothing here: its losses are those of the unpatched model."
            elif losses:
                pace[entry.label] = guess[entry.label]
                scores[entry.label] = fmean(score.value for score in losses)
        if plan is not None:
            return plan
        if not scores:
            raise BadComparison(f"No scheme could be measured. {next(iter(measure.reasons.values()), '')}")
        overhead = max(1.0, (time.monotonic() - begun) / measure.fresh) if measure.fresh else 1.0
        looked = [entry for entry in found if entry.label in scores]
        best = sorted(looked, key=lambda entry: scores[entry.label])[: ceil(len(looked) / 2)]
        more = [arm.label for arm in drawn(best, self.factor, self.trained, self.seed)]
        room = room_of_both(self.text, self.held_out, measure.lm.tokenizer, self.target, measure.scored)
        return planned([entry.label for entry in looked], more, pace, fixed, self.budget, setup, overhead, room)

    def speed(self) -> tuple[float, float, float]:
        """Seconds of a window of the unpatched model, of a cell besides its windows, and those spent to know both.

        Raises:
            BadComparison: it could not be measured.
        """
        self.progress(0.0, "measuring the speed")
        measure = self.measure
        if measure(UNCHANGED, self.text, 1, WARM) is None:  # the first pass takes longer than others
            raise BadComparison(f"The unpatched model could not be measured. {measure.reasons[UNPATCHED]}")
        seconds = []
        for windows, number in ((FIRST, 0), (TIMED, WARM)):
            before = measure.spent
            measure(UNCHANGED, self.text, windows, number)
            seconds.append(measure.spent - before)
        each = max((seconds[1] - seconds[0]) / (TIMED - FIRST), 0.5 * seconds[1] / TIMED)
        measure.forget_time()
        return each, max(0.0, seconds[1] - TIMED * each), time.monotonic() - self.started

    def check_budget(self, found: Sequence[Entry], pace: Mapping[str, float], fixed: float, setup: float) -> None:
        """Refuse a budget that cannot pay for the smallest plan at this pace."""
        needed = smallest([pace[entry.label] for entry in found], pace, fixed) + setup
        if needed > self.budget:
            raise too_small(self.budget, needed, len(found))

    def halved(self, arms: Sequence[Entry], plan: SearchPlan) -> Halving:
        """Successive halving of the arms on the text to choose on; of the first look alone if time allows no more.

        Raises:
            BadComparison: no arm could be measured on the first rung.
        """
        entries, defaults, measure = {arm.label: arm for arm in arms}, defaults_of(arms), self.measure
        measure.limit = plan.limit - plan.for_held_out

        def losses(label: str, rung: int) -> dict[str, float] | None:
            self.progress(self.done(plan), self.doing(plan, f"rung {rung + 1} of {len(plan.rungs)}: {label}"))
            expected = plan.cell(label, plan.rungs[rung]) if rung else 0.0
            found = measure(entries[label], self.text, plan.rungs[rung], rung, expected=expected)
            return None if found is None else losses_of(found, rung)

        found = halve(list(entries), defaults, len(plan.rungs), losses)
        if found.cut and not found.survivors:
            measure.limit = inf  # these cells are in the store
            found = replace(halve([arm.label for arm in arms if not arm.options], defaults, 1, losses), cut=True)
        if not found.survivors:
            raise BadComparison(f"No scheme could be measured. {next(iter(measure.reasons.values()), '')}")
        return found

    def judged(self, choice: Entry, arms: Sequence[Entry], found: Halving, plan: SearchPlan) -> dict[str, Any]:
        """Scores on the held-out windows: of the choice and all defaults that are single schemes, and unpatched.

        All of them are measured, whatever the clock says: a choice that was not compared is worth nothing.
        """
        measure, windows = self.measure, self.held_out_windows(plan)
        measure.limit = inf
        known = {arm.label: arm for arm in (*arms, UNCHANGED)}
        ranked = sorted((label for label in defaults_of(arms) if label in found.losses), key=found.score)
        scores: dict[str, list[DocumentScore] | None] = {}
        for label in dict.fromkeys((choice.label, UNPATCHED, *ranked)):
            self.progress(self.done(plan), self.doing(plan, f"held-out text: {label}"))
            scores[label] = measure(known[label], self.held_out, windows, LAST)
        within = f"{UNPATCHED}, {self.trained:,} tokens"
        scores[within] = measure(UNCHANGED, self.held_out, windows, LAST, length=self.trained)
        return scores

    def held_out_windows(self, plan: SearchPlan) -> int:
        """The held-out windows of the plan, or as many as the time pays for where the machine has become slower."""
        left = (plan.limit - self.measure.spent) / self.measure.slowdown
        return max(FEWEST, min(plan.held_out, int(plan.held_out * left / plan.for_held_out)))

    def done(self, plan: SearchPlan) -> float:
        """Completed fraction of the search."""
        return min(0.99, 0.01 + 0.98 * self.measure.spent / max(plan.expected, 1e-9))

    def doing(self, plan: SearchPlan, step: str) -> str:
        """A step, and the time that is left by the plan."""
        left = max(0.0, plan.expected - self.measure.spent) * plan.overhead
        return f"{step}, {duration(left)} left"


def unchanged(losses: Sequence[DocumentScore], theirs: Sequence[DocumentScore]) -> bool:
    """Whether losses are the same but for rounding in another order of operations."""
    return all(abs(one.value - two.value) < ROUNDING for one, two in zip(losses, theirs, strict=True))
