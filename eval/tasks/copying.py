"""lm-eval tasks on token strings that occur twice; predicting the second occurrence needs attention to the first.

posenc_copy         x₁ x₂ … xₙ ▏ x₁ x₂ … → xₙ        each token is n positions back
posenc_induction    … a b … … … … … … … a → b        the pair occurs once before, at a depth
posenc_copy_gain    loss of a passage that occurs earlier in the context, against its loss if it does not

The last tokens of the first two tasks are the same at every length, so only the distance changes. Training on short
strings and testing on long ones measures length generalisation: Kazemnejad et al. 2023, arXiv:2305.19466. The second
task is the induction of Olsson et al. 2022, arXiv:2209.11895.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from lm_eval.api.metrics import mean

from hf_posenc.eval.errors import LengthTooShort, TaskOptionOutOfRange, TokenizerTooPoor
from hf_posenc.eval.tasks.base import Doc, Metric
from hf_posenc.eval.tasks.perplexity import TokenTask
from hf_posenc.eval.tasks.sweep import Count, TaskOptions
from hf_posenc.eval.texts.windows import check_room

FEWEST = 8
"""Smallest number of distinct tokens of a random string; with fewer, a guess is often right."""
ROWS = 3
"""Requests of a copy-gain document at each length: repeated, other, none."""


class StringTask(TokenTask):
    """A task with a token string in every cell; the last tokens of the string are scored."""

    Options = TaskOptions.plus(alphabet=(Count, 1000))

    def documents(self) -> list[Doc]:
        """One random string per sample, at every length."""
        tokens = ordinary_tokens(self.tokenizer, self.options.alphabet)
        return [
            self.document(tokens, random.Random(f"{self.name}-{self.sweep.seed}-{sample}"), sample)
            for sample in range(self.sweep.samples)
        ]

    def document(self, tokens: Sequence[int], rng: random.Random, sample: int) -> Doc:
        """The document of one sample, with one string per cell."""
        raise NotImplementedError

    def string(self, tokens: Sequence[int], rng: random.Random, without: int | None = None) -> list[int]:
        """A random string for the longest length, in which the token ``without`` does not occur."""
        alphabet = [token for token in tokens if token != without]
        return [rng.choice(alphabet) for _ in range(self.sweep.longest)]

    def room(self, length: int) -> int:
        """Tokens that are left for a string after the special tokens before it."""
        return length - len(self.front)

    def check_room_twice(self) -> None:
        """Refuse lengths in which the scored tokens do not fit twice."""
        check_room([self.room(length) // 2 + 1 for length in self.sweep.lengths], self.sweep.scored)

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """The string of every cell, and how many of its last tokens are scored."""
        return [(doc["name"], [*self.front, *row], doc["scored"]) for row in doc["rows"]]


class CopyTask(StringTask):
    """Scores the end of a string's copy: share of right tokens, whether all are right, and loss in nats/token."""

    metrics: ClassVar[dict[str, Metric]] = {"acc": (mean, True), "exact": (mean, True), "nll": (mean, False)}

    def document(self, tokens: Sequence[int], rng: random.Random, sample: int) -> Doc:
        """A string for the longest length; shorter lengths use its end."""
        self.check_room_twice()
        string = self.string(tokens, rng)
        rows = [2 * string[-(self.room(length) // 2) :] for length in self.sweep.lengths]
        return {"name": f"string {sample}", "rows": rows, "scored": self.sweep.scored, "target": ""}

    def scores(self, doc: Doc, results: Sequence[Any]) -> list[dict[str, float]]:
        """Metric values at every length."""
        scored = doc["scored"]
        return [
            {"acc": hits / scored, "exact": float(hits == scored), "nll": -score / scored} for score, hits in results
        ]


class InductionTask(StringTask):
    """Scores the second token of a pair after its first, at every length and depth of the pair."""

    deep = True
    metrics: ClassVar[dict[str, Metric]] = {"acc": (mean, True), "nll": (mean, False)}

    def document(self, tokens: Sequence[int], rng: random.Random, sample: int) -> Doc:
        """A pair, and filler in which the first token of the pair does not occur."""
        first, second = rng.sample(list(tokens), 2)
        filler = self.string(tokens, rng, without=first)
        rows = [induced(filler, (first, second), depth or 0.0, self.room(length)) for length, depth in self.cells()]
        return {"name": f"pair {sample}", "rows": rows, "scored": 1, "target": ""}

    def scores(self, doc: Doc, results: Sequence[Any]) -> list[dict[str, float]]:
        """Metric values in every cell."""
        return [{"acc": float(hits), "nll": -score} for score, hits in results]


class CopyGainTask(StringTask):
    """Loss without the first occurrence of a passage minus loss with it, and the loss with it; nats/token.

    repeated    passage · … text … · passage ▏           the first occurrence is at the beginning of the context
    other       another passage · … text … · passage ▏   control: a passage of equal length from elsewhere in the text
    none        … … … … … text … … … · passage ▏         control: the original text

    The text in between is the one that precedes the passage. The scored tokens are the same in all three requests and
    at every length. Models that cannot answer questions yet can already copy, so these differences distinguish schemes
    where retrieval scores are all zero.
    """

    Options = TaskOptions
    metrics: ClassVar[dict[str, Metric]] = {"gain": (mean, True), "gain_over_other": (mean, True), "nll": (mean, False)}

    def documents(self) -> list[Doc]:
        """Windows of the text, each with the passage of another window as control."""
        self.check_room_twice()
        windows = TokenTask.documents(self)
        count = len(windows)
        if count < 2:
            raise TaskOptionOutOfRange(
                f"{self.name} compares the passages of two windows, got {count} window. Ask for 2 samples or more."
            )
        passages = [doc["ids"][-self.sweep.scored :] for doc in windows]
        return [doc | {"other": passages[(number + count // 2) % count]} for number, doc in enumerate(windows)]

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """The three texts of every length, and the length of the passage at their end."""
        rows = [row for length in self.sweep.lengths for row in self.rows(doc, length)]
        return super().arguments({"name": doc["name"], "rows": rows, "scored": self.sweep.scored})

    def rows(self, doc: Doc, length: int) -> list[list[int]]:
        """The texts of a document at one length: repeated, other, none."""
        text = doc["ids"][-self.room(length) :]
        passage, after_start = text[-self.sweep.scored :], text[self.sweep.scored :]
        return [passage + after_start, list(doc["other"]) + after_start, text]

    def scores(self, doc: Doc, results: Sequence[Any]) -> list[dict[str, float]]:
        """Both differences of loss, and the loss of the second occurrence, at every length."""
        losses = [-score / self.sweep.scored for score, _ in results]
        return [
            {"gain": none - repeated, "gain_over_other": other - repeated, "nll": repeated}
            for repeated, other, none in zip(*(losses[row::ROWS] for row in range(ROWS)), strict=True)
        ]


def ordinary_tokens(tokenizer: Any, count: int) -> list[int]:
    """The first ``count`` tokens that are not special; these are the most frequent ones of a trained vocabulary."""
    special = set(tokenizer.all_special_ids) | set(getattr(tokenizer, "added_tokens_decoder", {}))
    tokens = [token for token in sorted(tokenizer.get_vocab().values()) if token not in special][:count]
    if len(tokens) < FEWEST:
        raise TokenizerTooPoor(
            f"Random strings need {FEWEST} ordinary tokens or more, got {len(tokens)}. "
            "Raise alphabet, or use a tokenizer with a larger vocabulary."
        )
    return tokens


def induced(filler: Sequence[int], pair: tuple[int, int], depth: float, room: int) -> list[int]:
    """``room`` tokens: the end of ``filler`` with ``pair`` at ``depth``, and the pair again."""
    free = room - 4
    if free < 1:
        raise LengthTooShort(f"A repeated pair does not fit into {room} tokens. Ask for lengths above {room + 4}.")
    tail = filler[-free:]
    before = round(depth * (free - 1))  # at least one token stays between the two pairs
    return [*tail[:before], *pair, *tail[before:], *pair]
