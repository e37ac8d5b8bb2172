"""posenc_copy_gain: how much lower the loss of a passage is when the model has read the passage before.

    repeated    passage · … text … · passage ▏           the first occurrence is at the beginning of the context
    other       another passage · … text … · passage ▏   control: as long, from elsewhere in the text
    none        … … … … … text … … … · passage ▏         control: the text as it is

The text between is what precedes the passage, and the scored tokens are the same three times, and at every length. So a
document's differences are due to the first occurrence alone. Models that cannot answer questions yet already copy, so
these differences tell schemes apart where retrieval is all zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from lm_eval.api.metrics import mean

from hf_posenc.eval.errors import TaskOptionOutOfRange
from hf_posenc.eval.lm.spans import Span
from hf_posenc.eval.tasks.base import Doc, Metric
from hf_posenc.eval.tasks.perplexity import SpanTask
from hf_posenc.eval.tasks.sweep import metric_name
from hf_posenc.eval.texts.windows import check_room

ROWS = 3
"""Requests of a document at each length: repeated, other, none."""


class CopyGainTask(SpanTask):
    """Loss without the first occurrence minus loss with it, and the loss with it; nats/token."""

    metrics: ClassVar[dict[str, Metric]] = {"gain": (mean, True), "gain_over_other": (mean, True), "nll": (mean, False)}

    def documents(self) -> list[Doc]:
        """Windows of the text, each with the passage of another window as control.

        Raises:
            TaskOptionOutOfRange: there is only one window.
        """
        check_room([self.room(length) // 2 + 1 for length in self.sweep.lengths], self.sweep.scored)
        found = super().documents()
        if len(found) < 2:
            raise TaskOptionOutOfRange(
                f"{self.config.task} compares a passage with that of another window, got {len(found)} window. "
                "Ask for 2 samples or more."
            )
        passages = [doc["ids"][-self.sweep.scored :] for doc in found]
        return [doc | {"other": passages[(number + len(found) // 2) % len(found)]} for number, doc in enumerate(found)]

    def size(self) -> int:
        """Tokens that fit the longest length, begin token included."""
        return self.room(self.sweep.longest)

    def room(self, length: int) -> int:
        """Tokens of a text, without the special tokens before it."""
        return length - len(self.front)

    def rows(self, doc: Doc, length: int) -> list[list[int]]:
        """The texts of a document at one length: repeated, other, none."""
        whole = doc["ids"][-self.room(length) :]
        passage, rest = whole[-self.sweep.scored :], whole[self.sweep.scored :]
        return [passage + rest, list(doc["other"]) + rest, whole]

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """The texts of every length, and the span of the passage at their end."""
        rows = [row for length in self.sweep.lengths for row in self.rows(doc, length)]
        spans: list[list[Span]] = [[(0, len(row) - self.sweep.scored, len(row))] for row in rows]
        return [(doc["name"], self.front, row, span) for row, span in zip(rows, spans, strict=True)]

    def scores(self, doc: Doc, results: Sequence[Any]) -> dict[str, float]:
        """Differences of loss and the loss of the second occurrence, at every length."""
        losses = [-score / self.sweep.scored for ((score, _),) in results]
        values: dict[str, float] = {}
        for number, length in enumerate(self.sweep.lengths):
            repeated, other, none = losses[ROWS * number : ROWS * (number + 1)]
            values[metric_name("gain", length)] = none - repeated
            values[metric_name("gain_over_other", length)] = other - repeated
            values[metric_name("nll", length)] = repeated
        return values
