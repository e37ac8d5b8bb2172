"""Tasks that tiny models are trained on from random weights.

Training rows depend on the seed, so that models of different seeds are independent samples. Questions depend on their
length alone, so that the models of all schemes and seeds answer the same ones and their answers can be paired.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hf_posenc.eval.texts.stdlib_source import HELD_OUT, TRAINING, module_text

IGNORED = -100  # label of a token that is not scored
BEGIN, BETWEEN, END, ZERO = range(4)  # tokens of the puzzles; the ten digits follow from ZERO on
ASKED = 64  # documents of a text task at each length; puzzles have four times as many
Row = dict[str, Tensor]


@dataclass(frozen=True)
class TrainingBudget:
    """What every scheme may spend on one task, and the size of the model.

    Attributes:
        trained: greatest length that is trained on, in the unit of the task.
        asked: lengths that are measured.
        steps, batch: optimiser steps, and rows a step.
        learning_rate: peak, of AdamW.
        width, layers: of the model.
    """

    trained: int
    asked: tuple[int, ...]
    steps: int
    batch: int
    learning_rate: float
    width: int = 64
    layers: int = 2


class Task(Dataset[Row]):
    """Rows to train on, the same for every scheme, and questions, the same for every scheme and seed."""

    vocabulary: int
    main: str  # name of the first of `scores`
    measure: str  # what that is, with its unit
    unit: str  # of lengths

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
        """Scores of each question by metric, from ``logits [row, token, vocabulary]`` of the next token."""
        raise NotImplementedError

    def score(self, logits: Tensor, labels: Tensor) -> float:
        """Mean of the main score over all questions."""
        return self.scores(logits, labels)[self.main].mean().item()


class Text(Task):
    """The standard library's source, byte by byte: loss of the same last bytes after contexts of every length."""

    vocabulary, main, measure, unit = 256, "loss", "nats a byte", "bytes"

    def __init__(self, budget: TrainingBudget, seed: int) -> None:
        super().__init__(budget, seed)
        self.trained, self.held_out = joined(TRAINING), joined(HELD_OUT)

    def __getitem__(self, index: int) -> Row:
        start = random.Random(f"{self.seed}-{index}").randrange(len(self.trained) - self.longest)
        ids = self.trained[start : start + self.longest].long()
        return {"input_ids": ids, "labels": ids}

    def tokens(self, length: int) -> int:
        return length

    def questions(self, length: int) -> Row:
        """Windows of held-out text that end with the same bytes at every length; half of the shortest is scored."""
        ids = torch.stack([self.held_out[end - length : end] for end in self.ends()]).long()
        scored = min(self.budget.asked) // 2
        return {"input_ids": ids, "labels": ids.index_fill(1, torch.arange(length - scored), IGNORED)}

    def ends(self) -> list[int]:
        """Where the windows end, evenly spaced over the held-out text."""
        return torch.linspace(max(self.budget.asked), len(self.held_out), ASKED).long().tolist()

    def clusters(self, length: int) -> list[str]:
        """The module that a window ends in."""
        starts = [0, *accumulate(len(module_text(name).encode()) + 1 for name in HELD_OUT)]
        return [HELD_OUT[bisect_right(starts, end - 1) - 1] for end in self.ends()]

    def scores(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": mean_loss(logits, labels)}


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
        draw = random.Random(f"asked-{length}")
        return stacked([self.row(length, draw, self.tokens(length)) for _ in range(4 * ASKED)])

    def clusters(self, length: int) -> list[str]:
        """Every puzzle is drawn independently."""
        return [str(number) for number in range(4 * ASKED)]

    def scores(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """``exact``: 1 without a mistake; ``tokens``: share of right tokens; ``loss`` of the answer, nats/token."""
        asked = labels != IGNORED
        right = (logits.argmax(-1) == labels) & asked
        exact, tokens = (right == asked).all(-1).float(), right.sum(-1) / asked.sum(-1)
        return {"exact": exact, "tokens": tokens, "loss": mean_loss(logits, labels)}


class Copy(Puzzle):
    """A string of digits, and the same string again (arXiv:2305.19466, section 4; arXiv:2305.16843)."""

    unit = "digits"

    def tokens(self, length: int) -> int:
        return 2 * length + 3

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        string = [draw.randrange(ZERO, ZERO + 10) for _ in range(length)]
        return [BEGIN, *string, BETWEEN], [*string, END]


class Addition(Puzzle):
    """Two binary numbers and their sum, the lowest digit first (arXiv:2305.19466, section 4, there in base 10)."""

    unit = "binary digits a number"

    def tokens(self, length: int) -> int:
        return 3 * length + 5

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        numbers = [draw.randrange(2**length) for _ in range(2)]
        first, second = (digits(number, length) for number in numbers)
        return [BEGIN, *first, BETWEEN, *second, BETWEEN], [*digits(sum(numbers), length + 1), END]


class Sorting(Puzzle):
    """Random digits, and the same digits in ascending order (arXiv:2305.19466, section 4)."""

    unit = "digits"

    def tokens(self, length: int) -> int:
        return 2 * length + 3

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        listed = [draw.randrange(ZERO, ZERO + 10) for _ in range(length)]
        return [BEGIN, *listed, BETWEEN], [*sorted(listed), END]


class SelectiveCopying(Puzzle):
    """Six digits at random places among ``length`` blanks, and the digits alone (arXiv:2405.18719, section 5.2)."""

    digits, blank = 6, ZERO + 10
    vocabulary, unit = blank + 1, "blanks"

    def tokens(self, length: int) -> int:
        return length + 2 * self.digits + 3

    def drawn_length(self, draw: random.Random) -> int:
        """Always the trained number of blanks, as in the paper."""
        return self.budget.trained

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        digits = [draw.randrange(ZERO, ZERO + 10) for _ in range(self.digits)]
        text = [self.blank] * (length + self.digits)
        for place, digit in zip(sorted(draw.sample(range(len(text)), self.digits)), digits, strict=True):
            text[place] = digit
        return [BEGIN, *text, BETWEEN], [*digits, END]


class FlipFlop(Puzzle):
    """Recall the bit that was written last: ``w 1  i 0  i 1  r 1``, w: write, i: ignore, r: read, which is answered.

    Of ``length`` instructions one is a write or a read. All texts have as many instructions, so that sparse texts
    change distances and nothing else. Liu et al. 2023, arXiv:2306.00946, section 3.1; arXiv:2405.18719, section 5.1.
    """

    write, read, ignore, low = range(4)
    instructions = 24
    vocabulary, unit = low + 2, "instructions to a write or read"

    def tokens(self, length: int) -> int:
        return 2 * self.instructions

    def drawn_length(self, draw: random.Random) -> int:
        """Always the trained distance, as in the paper."""
        return self.budget.trained

    def row(self, length: int, draw: random.Random, room: int) -> Row:
        """One text; only the bits after reads are scored. The first instruction is a write, the last a read."""
        ids, labels, bit = list[int](), list[int](), 0
        for number in range(self.instructions):
            if number in (0, self.instructions - 1):
                instruction = self.read if number else self.write
            else:
                ignored = draw.random() * length >= 1
                instruction = self.ignore if ignored else draw.choice((self.write, self.read))
            shown = bit if instruction == self.read else draw.randrange(2)
            bit = shown if instruction == self.write else bit
            ids += [instruction, self.low + shown]
            labels += [IGNORED, self.low + shown if instruction == self.read else IGNORED]
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


class Largest(Puzzle):
    """Numbers, one token each, and the largest of them, which comes once (arXiv:2410.01104, max retrieval)."""

    numbers = 32
    vocabulary, unit = ZERO + numbers, "numbers"

    def tokens(self, length: int) -> int:
        return length + 4

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        """The largest is any number but the smallest, equally often at every length."""
        largest = draw.randrange(1, self.numbers)
        text = [draw.randrange(largest) for _ in range(length)]
        text.insert(draw.randint(0, length), largest)
        return [BEGIN, *(ZERO + number for number in text), BETWEEN], [ZERO + largest]


TASKS: dict[str, type[Task]] = {
    "text": Text, "copy": Copy, "addition": Addition, "sorting": Sorting, "selective_copying": SelectiveCopying,
    "flip_flop": FlipFlop, "largest": Largest,
}  # fmt: skip


def digits(number: int, count: int) -> list[int]:
    """The binary digits of a number as tokens, lowest first."""
    return [ZERO + (number >> place & 1) for place in range(count)]


def stacked(rows: list[Row]) -> Row:
    """Rows of equal length as one batch, ``[row, token]``."""
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of the scored tokens of each row, ``[row]``, in nats."""
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return losses.sum(-1) / (labels != IGNORED).sum(-1)


@lru_cache(maxsize=2)
def joined(names: tuple[str, ...]) -> Tensor:
    """The bytes of modules, joined by line breaks."""
    return torch.frombuffer(bytearray("\n".join(map(module_text, names)).encode()), dtype=torch.uint8)
