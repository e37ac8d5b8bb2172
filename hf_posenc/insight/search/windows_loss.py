"""Loss of arms on windows of a text, as cells of a comparison: stored as soon as measured, and found again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hf_posenc.eval.comparison.cell import Cell, MeasurementRequest
from hf_posenc.eval.comparison.fitting import Fitting
from hf_posenc.eval.comparison.measure import is_final, measure_cells
from hf_posenc.eval.comparison.tune import METRIC
from hf_posenc.eval.evaluation import CAUSAL_TASKS, MASKED_TASKS
from hf_posenc.eval.lm.model_kinds import is_masked
from hf_posenc.eval.results.documents import DocumentScore
from hf_posenc.eval.results.record import Record
from hf_posenc.eval.results.store import Store
from hf_posenc.eval.texts.measured_text import MeasuredText
from hf_posenc.eval.validate import SharedOptions
from hf_posenc.insight.search.halving import OutOfTime
from hf_posenc.patching.set_aside import scheme_set_aside
from hf_posenc.schemes.entry import Entry

SEEDS = 1000  # of windows: one for each rung of a search


@dataclass
class WindowLoss:
    """Measures arms on windows of two texts, and adds up the seconds of their cells.

    Attributes:
        lm: lm-eval model object.
        fitting: how arms are put on the model.
        store: of finished cells.
        identity: digests of model, tokenizer, package and versions.
        target: length of the windows, tokens.
        scored: tokens scored at the end of each.
        seed: of the search.
        spent: seconds of the cells so far, those of earlier runs included.
        limit: of them; a cell that is expected to end beyond it raises `OutOfTime`.
        fresh: seconds of the cells that were not in the store.
        foretold, taken: seconds of the cells with an expected time, as expected and as measured.
        counted: keys of the cells so far.
        seconds: those of the cells of every arm.
        reasons: why arms were refused or failed.
    """

    lm: Any
    fitting: Fitting
    store: Store
    identity: dict[str, Any]
    target: int
    scored: int
    seed: int
    model_args: dict[str, Any] = field(default_factory=dict)
    spent: float = 0.0
    limit: float = float("inf")
    fresh: float = 0.0
    foretold: float = 0.0
    taken: float = 0.0
    counted: set[str] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """The task that gives the loss of this kind of model."""
        return (MASKED_TASKS if is_masked(self.lm.model) else CAUSAL_TASKS)[0]

    @property
    def slowdown(self) -> float:
        """How much slower cells were than expected; 1 where they were not."""
        return max(1.0, self.taken / self.foretold) if self.foretold else 1.0

    def __call__(
        self,
        arm: Entry,
        text: MeasuredText,
        windows: int,
        rung: int,
        *,
        expected: float = 0.0,
        length: int | None = None,
    ) -> list[DocumentScore] | None:
        """Losses of an arm on the windows of a rung; None where it is refused or fails.

        Args:
            arm: scheme with options.
            text: which the windows are taken from.
            windows: number of them.
            rung: each has windows of its own.
            expected: seconds that the cell is expected to take.
            length: of the windows, tokens; by default the target. They end at the same places, but where more tokens
                are scored than half of a window, only that half is, and there are no pairs with other lengths.

        Raises:
            OutOfTime: there is no time left for the cell.
        """
        if self.spent + expected > self.limit:
            raise OutOfTime
        request = self.request(text, windows, rung, self.scored if length is None else min(self.scored, length // 2))
        with scheme_set_aside(self.lm.model):
            cell = request.cell(arm, self.task, [length or self.target])
        record = self.measured(cell, request, text)
        if cell.key not in self.counted:
            self.counted.add(cell.key)
            self.spent += record.seconds
            self.foretold += expected
            self.taken += record.seconds if expected else 0.0
            self.seconds[arm.label] = self.seconds.get(arm.label, 0.0) + record.seconds
        if record.state != "done":
            self.reasons[arm.label] = record.reason
            return None
        scores = [DocumentScore(**score) for score in record.documents]
        where = "" if length is None else f", {length} tokens"
        return [
            replace(score, length=None, document=f"{score.document}{where}")
            for score in scores
            if score.metric == METRIC and score.depth is None
        ]

    def forget_time(self) -> None:
        """Leave the cells so far out of the time that is spent."""
        self.spent, self.fresh = 0.0, 0.0
        self.seconds.clear()

    def measured(self, cell: Cell, request: MeasurementRequest, text: MeasuredText) -> Record:
        """The record of a cell, from the store or measured now."""
        known = is_final(self.store.get(cell.key))
        passed_on = {**request.measure, "text": text, "options": SharedOptions(), "include_path": None}
        (record,) = measure_cells(self.lm, [cell], self.store, request, passed_on, lambda done, doing: None)
        self.fresh += 0.0 if known else record.seconds
        return record

    def request(self, text: MeasuredText, windows: int, rung: int, scored: int) -> MeasurementRequest:
        """The settings of the cells of a rung."""
        measure = {
            "samples": windows, "scored": scored, "keys": 1, "depths": [0.5], "seed": SEEDS * self.seed + rung,
            "limit": None,
        }  # fmt: skip
        return MeasurementRequest(
            measure, self.target, False, self.model_args, self.identity | {"text": text.digest},
            fit=self.fitting.fit, computes=self.fitting.computes,
        )  # fmt: skip


def losses_of(scores: list[DocumentScore], rung: int) -> dict[str, float]:
    """Loss by window, named so that windows of two rungs are never taken for one."""
    return {f"{rung}: {score.document}": score.value for score in scores}
