"""lm-eval tasks that copy random token strings, scored with teacher forcing in one forward pass."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from lm_eval.api.metrics import mean

from hf_posenc.eval.lm.spans import Span
from hf_posenc.eval.lm.special_tokens import front_of
from hf_posenc.eval.tasks.base import DepthSweep, Doc, LengthSweep, Metric
from hf_posenc.eval.tasks.sweep import metric_name
from hf_posenc.eval.texts.random_strings import (
    copied,
    induced,
    ordinary_tokens,
    random_string,
)
from hf_posenc.eval.texts.text_filler import passage
from hf_posenc.eval.texts.windows import check_room


class StringTask(LengthSweep):
    """A task with one random string per cell; its last tokens are scored."""

    request_type = "span_scores"
    reads: ClassVar[frozenset[str]] = frozenset({"alphabet"})

    def documents(self) -> list[Doc]:
        """One random string per sample, at every length."""
        tokens = ordinary_tokens(self.tokenizer, self.sweep.alphabet)
        return [
            self.document(tokens, random.Random(f"{self.config.task}-{self.sweep.seed}-{sample}"), sample)
            for sample in range(self.sweep.samples)
        ]

    def document(self, tokens: Sequence[int], rng: random.Random, sample: int) -> Doc:
        """The document of one sample, with a string for every cell."""
        raise NotImplementedError

    def string(self, tokens: Sequence[int], rng: random.Random, without: int | None = None) -> list[int]:
        """A random string for the longest length; a passage of the user's text, where one is given."""
        if self.sweep.text is None:
            return random_string([token for token in tokens if token != without], self.sweep.longest, rng)
        return passage(self.own_text(), self.sweep.longest, rng, without)

    def room(self, length: int) -> int:
        """Tokens of a string, without the special tokens before it."""
        return length - len(front_of(self.tokenizer))

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """The string of every cell, and the span of its scored tokens."""
        front = front_of(self.tokenizer)
        spans: list[list[Span]] = [[(0, len(row) - doc["scored"], len(row))] for row in doc["rows"]]
        return [(doc["name"], front, row, span) for row, span in zip(doc["rows"], spans, strict=True)]


class CopyTask(StringTask):
    """The end of a string's copy: share of tokens right, whether all are, and nats/token."""

    metrics: ClassVar[dict[str, Metric]] = {"acc": (mean, True), "exact": (mean, True), "nll": (mean, False)}

    def document(self, tokens: Sequence[int], rng: random.Random, sample: int) -> Doc:
        """A string for the longest length; shorter lengths use its end."""
        check_room([self.room(length) // 2 + 1 for length in self.sweep.lengths], self.sweep.scored)
        string = self.string(tokens, rng)
        rows = [copied(string, self.room(length)) for length in self.sweep.lengths]
        return {"name": f"string {sample}", "rows": rows, "scored": self.sweep.scored, "target": ""}

    def scores(self, doc: Doc, results: Sequence[Any]) -> dict[str, float]:
        """Metric values at every length."""
        values: dict[str, float] = {}
        for length, ((score, hits),) in zip(self.sweep.lengths, results, strict=True):
            values[metric_name("acc", length)] = hits / doc["scored"]
            values[metric_name("exact", length)] = float(hits == doc["scored"])
            values[metric_name("nll", length)] = -score / doc["scored"]
        return values


class InductionTask(DepthSweep, StringTask):
    """Whether the second token of a pair is written after the first, at every length and depth of the pair."""

    metrics: ClassVar[dict[str, Metric]] = {"acc": (mean, True), "nll": (mean, False)}

    def document(self, tokens: Sequence[int], rng: random.Random, sample: int) -> Doc:
        """A pair, and filler in which its first token does not occur."""
        first, second = rng.sample(list(tokens), 2)
        filler = self.string(tokens, rng, without=first)
        rows = [induced(filler, (first, second), depth, self.room(length)) for length, depth in self.cells()]
        return {"name": f"pair {sample}", "rows": rows, "scored": 1, "target": ""}

    def scores(self, doc: Doc, results: Sequence[Any]) -> dict[str, float]:
        """Metric values in every cell, and at every length over the depths."""
        values: dict[str, float] = {}
        by_length: dict[str, list[float]] = {}
        for (length, depth), ((score, hits),) in zip(self.cells(), results, strict=True):
            for metric, value in (("acc", float(hits)), ("nll", -score)):
                values[metric_name(metric, length, depth)] = value
                by_length.setdefault(metric_name(metric, length), []).append(value)
        return values | {name: mean(found) for name, found in by_length.items()}
