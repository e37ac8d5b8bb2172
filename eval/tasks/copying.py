"""lm-eval tasks on strings of tokens that come twice, which requires attention to distant tokens.

posenc_copy         x₁ x₂ … xₙ ▏ x₁ x₂ … → xₙ        each token is n positions back
posenc_induction    … a b … … … … … … … a → b        the pair occurs once, at a depth
posenc_copy_gain    a passage that the model has read before, against the same passage that it has not

Of the first two, the last tokens are the same at every length, so that only the distance changes. Training models on
short strings and asking them for long ones is how length generalisation is measured: Kazemnejad et al. 2023,
arXiv:2305.19466; the second is the induction of Olsson et al. 2022, arXiv:2209.11895.
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
"""Distinct tokens of a random string; with fewer, guessing is often right."""
ROWS = 3
"""Requests of a document of copy gain at each length: repeated, other, none."""


class StringTask(TokenTask):
    """A task with a string of tokens in every cell, whose last tokens are scored."""

    Options = TaskOptions.plus(alphabet=(Count, 1000))
    reads_text = False

    def documents(self) -> list[Doc]:
        """One random string per sample, at every length."""
        tokens = ordinary_tokens(self.tokenizer, self.options.alphabet)
        return [
            self.document(tokens, random.Random(f"{self.name}-{self.sweep.seed}-{sample}"), sample)
            for sample in range(self.sweep.samples)
        ]

    def document(self, tokens: Sequence[int], rng: random.Random, sample: int) -> Doc:
        """The document of one sample, with a string for every cell."""
        raise NotImplementedError

    def string(self, tokens: Sequence[int], rng: random.Random, without: int | None = None) -> list[int]:
        """A random string for the longest length."""
        kept = [token for token in tokens if token != without]
        return [rng.choice(kept) for _ in range(self.sweep.longest)]

    def room(self, length: int) -> int:
        """Tokens of a string, without the special tokens before it."""
        return length - len(self.front)

    def check_room_twice(self) -> None:
        """Refuse lengths in which the scored tokens do not fit twice."""
        check_room([self.room(length) // 2 + 1 for length in self.sweep.lengths], self.sweep.scored)

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """The string of every cell, and how many of its last tokens are scored."""
        return [(doc["name"], [*self.front, *row], doc["scored"]) for row in doc["rows"]]


class CopyTask(StringTask):
    """The end of a string's copy: share of tokens right, whether all are, and nats/token."""

    metrics: ClassVar[dict[str, Metric]] = {"acc": (mean, True), "exact": (mean, True), "nll": (mean, False)}

    def document(self, tokens: Sequence[int], rng: random.Random, sample: int) -> Doc:
        """A string for the longest length; shorter lengths use its end."""
        self.check_room_twice()
        string = self.string(tokens, rng)
        rows = [copied(string, self.room(length)) for length in self.sweep.lengths]
        return {"name": f"string {sample}", "rows": rows, "scored": self.sweep.scored, "target": ""}

    def scores(self, doc: Doc, results: Sequence[Any]) -> list[dict[str, float]]:
        """Metric values at every length."""
        scored = doc["scored"]
        return [
            {"acc": hits / scored, "exact": float(hits == scored), "nll": -score / scored} for score, hits in results
        ]


class InductionTask(StringTask):
    """Whether the second token of a pair is written after the first, at every length and depth of the pair."""

    deep = True
    metrics: ClassVar[dict[str, Metric]] = {"acc": (mean, True), "nll": (mean, False)}

    def document(self, tokens: Sequence[int], rng: random.Random, sample: int) -> Doc:
        """A pair, and filler in which its first token does not occur."""
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
    other       another passage · … text … · passage ▏   control: as long, from elsewhere in the text
    none        … … … … … text … … … · passage ▏         control: the text as it is

    The text between is what precedes the passage, and the scored tokens are the same three times, and at every length.
    Models that cannot answer questions yet already copy, so these differences tell schemes apart where retrieval is
    all zeros.
    """

    Options = TaskOptions
    reads_text = True
    metrics: ClassVar[dict[str, Metric]] = {"gain": (mean, True), "gain_over_other": (mean, True), "nll": (mean, False)}

    def documents(self) -> list[Doc]:
        """Windows of the text, each with the passage of another window as control."""
        self.check_room_twice()
        found = TokenTask.documents(self)
        if len(found) < 2:
            raise TaskOptionOutOfRange(
                f"{self.name} compares the passages of two windows, got {len(found)} window. Ask for 2 samples or more."
            )
        passages = [doc["ids"][-self.sweep.scored :] for doc in found]
        return [doc | {"other": passages[(number + len(found) // 2) % len(found)]} for number, doc in enumerate(found)]

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """The texts of every length, and how long the passage at their end is."""
        rows = [row for length in self.sweep.lengths for row in self.rows(doc, length)]
        return super().arguments({"name": doc["name"], "rows": rows, "scored": self.sweep.scored})

    def rows(self, doc: Doc, length: int) -> list[list[int]]:
        """The texts of a document at one length: repeated, other, none."""
        whole = doc["ids"][-self.room(length) :]
        passage, rest = whole[-self.sweep.scored :], whole[self.sweep.scored :]
        return [passage + rest, list(doc["other"]) + rest, whole]

    def scores(self, doc: Doc, results: Sequence[Any]) -> list[dict[str, float]]:
        """Differences of loss and the loss of the second occurrence, at every length."""
        losses = [-score / self.sweep.scored for score, _ in results]
        return [
            {"gain": none - repeated, "gain_over_other": other - repeated, "nll": repeated}
            for repeated, other, none in zip(*(losses[row::ROWS] for row in range(ROWS)), strict=True)
        ]


def ordinary_tokens(tokenizer: Any, count: int) -> list[int]:
    """The first ``count`` tokens that are not special; in a trained vocabulary the first are the most frequent."""
    special = set(tokenizer.all_special_ids) | set(getattr(tokenizer, "added_tokens_decoder", {}))
    found = [token for token in sorted(tokenizer.get_vocab().values()) if token not in special][:count]
    if len(found) < FEWEST:
        raise TokenizerTooPoor(
            f"Random strings need {FEWEST} ordinary tokens or more, got {len(found)}. "
            "Raise alphabet, or use a tokenizer with a larger vocabulary."
        )
    return found


def copied(string: Sequence[int], room: int) -> list[int]:
    """The end of ``string``, twice: as long as fits ``room`` tokens."""
    half = room // 2
    return [*string[-half:], *string[-half:]]


def induced(filler: Sequence[int], pair: tuple[int, int], depth: float, room: int) -> list[int]:
    """The end of ``filler`` with ``pair`` at ``depth``, and the pair again: ``room`` tokens."""
    free = room - 4
    if free < 1:
        raise LengthTooShort(f"A repeated pair does not fit into {room} tokens. Ask for lengths above {room + 4}.")
    kept = filler[-free:]
    before = round(depth * (free - 1))  # never the neighbour of its own question
    return [*kept[:before], *pair, *kept[before:], *pair]
