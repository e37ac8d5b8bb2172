"""Base class of the tasks on which tiny models are trained from random weights.

Training rows depend on the seed, so models with different seeds are independent samples. Questions depend only on their
length, so the models of all schemes and seeds answer the same questions, and their answers can be paired.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

IGNORED = -100  # label of a token that is not scored
ASKED = 64  # documents of a text task at each length; puzzles have four times as many questions
Row = dict[str, Tensor]


@dataclass(frozen=True)
class TrainingBudget:
    """Training budget of every scheme on one task, and the size of the model.

    Attributes:
        trained: longest trained length, in the unit of the task.
        asked: lengths that are measured.
        steps, batch: optimiser steps, and rows per step.
        learning_rate: peak learning rate of AdamW.
        width, layers: size of the model.
    """

    trained: int
    asked: tuple[int, ...]
    steps: int
    batch: int
    learning_rate: float
    width: int = 64
    layers: int = 2


class Task(Dataset[Row]):
    """Training rows, equal for every scheme, and questions, equal for every scheme and seed."""

    vocabulary: int
    main: str  # name of the main score
    measure: str  # meaning of the main score, with its unit
    unit: str  # unit of lengths

    def __init__(self, budget: TrainingBudget, seed: int) -> None:
        self.budget, self.seed = budget, seed

    def __len__(self) -> int:
        return self.budget.steps * self.budget.batch

    def __getitem__(self, index: int) -> Row:
        raise NotImplementedError

    @property
    def longest(self) -> int:
        """Tokens of the longest training row."""
        return self.tokens(self.budget.trained)

    @property
    def longest_asked(self) -> int:
        """Tokens of the longest row, in training or measurement."""
        return max(map(self.tokens, (*self.budget.asked, self.budget.trained)))

    def tokens(self, length: int) -> int:
        """Number of tokens of a row of a length in units of the task."""
        raise NotImplementedError

    def questions(self, length: int) -> Row:
        """Rows of one length, ``[row, token]``; tokens that are not scored have the label `IGNORED`."""
        raise NotImplementedError

    def clusters(self, length: int) -> list[str]:
        """Cluster of each question; questions of one cluster are not independent."""
        raise NotImplementedError

    def scores(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Scores of each question by metric, from ``logits [row, token, vocabulary]`` of the next token."""
        raise NotImplementedError

    def score(self, logits: Tensor, labels: Tensor) -> float:
        """Mean of the main score over all questions."""
        return self.scores(logits, labels)[self.main].mean().item()


def stacked(rows: list[Row]) -> Row:
    """Stack rows of equal length into a batch, ``[row, token]``."""
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of the scored tokens of each row, ``[row]``, in nats."""
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return losses.sum(-1) / (labels != IGNORED).sum(-1)
