"""Base classes of the tasks that tiny models are trained on.

Training rows depend on the seed, so that models of different seeds are independent samples; questions depend on their
length alone, so that the models of all schemes and seeds answer the same ones and their answers can be paired.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from lab.from_scratch.budget import TrainingBudget

IGNORED = -100
"""Label of a token that is not scored, as in torch's cross-entropy."""
BEGIN, BETWEEN, END, ZERO = range(4)
"""Tokens of the puzzles; the ten digits follow from ``ZERO`` on."""
ASKED = 64
"""Documents of a text task at each length; puzzles have four times as many."""

Row = dict[str, Tensor]


class Task(Dataset[Row]):
    """Rows to train on, the same for every scheme, and questions to measure on, the same for every scheme and seed.

    Attributes:
        vocabulary: number of token ids.
        main: name of the first of `scores`.
        measure: what it is, with its unit.
        unit: of lengths.
    """

    vocabulary: int
    main: str
    measure: str
    unit: str

    def __init__(self, budget: TrainingBudget, seed: int) -> None:
        self.budget, self.seed = budget, seed

    def __len__(self) -> int:
        return self.budget.steps * self.budget.batch

    def __getitem__(self, index: int) -> Row:
        raise NotImplementedError

    @property
    def longest(self) -> int:
        """Tokens of the longest row that is trained on."""
        return self.tokens(self.budget.trained)

    @property
    def longest_asked(self) -> int:
        """Tokens of the longest row that is trained on or measured."""
        return max(map(self.tokens, (*self.budget.asked, self.budget.trained)))

    def tokens(self, length: int) -> int:
        """Tokens of a row of that length."""
        raise NotImplementedError

    def questions(self, length: int) -> Row:
        """Rows of one length, ``[row, token]``; tokens that are not scored have the label `IGNORED`."""
        raise NotImplementedError

    def clusters(self, length: int) -> list[str]:
        """Cluster of each question; questions of one cluster are not independent."""
        raise NotImplementedError

    def scores(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Scores of each question, ``[row]``, by the name of the metric.

        Args:
            logits: of the next token, ``[row, token, vocabulary]``.
            labels: the next token, ``[row, token]``.
        """
        raise NotImplementedError

    def score(self, logits: Tensor, labels: Tensor) -> float:
        """Mean of the main score over all questions."""
        return self.scores(logits, labels)[self.main].mean().item()


class Puzzle(Task):
    """A question in digits with a single right answer."""

    vocabulary, main, measure = ZERO + 10, "exact", "share without a mistake"

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        """Question and answer as tokens."""
        raise NotImplementedError

    def row(self, length: int, draw: random.Random, room: int) -> Row:
        """One puzzle, padded to ``room`` tokens; only the answer is scored."""
        question, answer = self.puzzle(length, draw)
        padding = [END] * (room - len(question) - len(answer))
        labels = [IGNORED] * len(question) + answer + [IGNORED] * len(padding)
        return {"input_ids": torch.tensor(question + answer + padding), "labels": torch.tensor(labels)}

    def drawn_length(self, draw: random.Random) -> int:
        """Length of a training row: every length up to the trained one is as likely."""
        return draw.randint(1, self.budget.trained)

    def __getitem__(self, index: int) -> Row:
        draw = random.Random(f"{self.seed}-{index}")
        return self.row(self.drawn_length(draw), draw, self.longest)

    def questions(self, length: int) -> Row:
        """Puzzles of one length."""
        draw = random.Random(f"asked-{length}")
        return stacked([self.row(length, draw, self.tokens(length)) for _ in range(4 * ASKED)])

    def clusters(self, length: int) -> list[str]:
        """Every puzzle is drawn independently."""
        return [str(number) for number in range(4 * ASKED)]

    def scores(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Scores of the answers, read off a single forward pass in which every token follows the right ones.

        ``exact``   1 where the answer has no mistake, which is also what greedy decoding would say; else 0
        ``tokens``  share of the answer's tokens that are right
        ``loss``    mean cross-entropy of the answer's tokens, nats/token
        """
        asked = labels != IGNORED
        right = (logits.argmax(-1) == labels) & asked
        return {
            "exact": (right == asked).all(-1).float(),
            "tokens": right.sum(-1) / asked.sum(-1),
            "loss": mean_loss(logits, labels),
        }


def stacked(rows: list[Row]) -> Row:
    """Rows of equal length as one batch, ``[row, token]``."""
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of the scored tokens of each row, ``[row]``, in nats."""
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return losses.sum(-1) / (labels != IGNORED).sum(-1)
