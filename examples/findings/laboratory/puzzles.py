"""Puzzles in digits, each with exactly one right answer."""

from __future__ import annotations

import random

import torch
from laboratory.task import ASKED, IGNORED, Row, Task, mean_loss, stacked
from torch import Tensor

BEGIN, BETWEEN, END, ZERO = range(4)  # tokens of the puzzles; the ten digits follow from ZERO on


class Puzzle(Task):
    """A task of puzzles: a question in digits, and its only right answer."""

    vocabulary, main, measure = ZERO + 10, "exact", "share without a mistake"

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        """Draw a question and its answer, as tokens."""
        raise NotImplementedError

    def row(self, length: int, draw: random.Random, room: int) -> Row:
        """Draw one puzzle, padded to ``room`` tokens; only the answer is scored."""
        question, answer = self.puzzle(length, draw)
        padding = [END] * (room - len(question) - len(answer))
        labels = [IGNORED] * len(question) + answer + [IGNORED] * len(padding)
        return {"input_ids": torch.tensor(question + answer + padding), "labels": torch.tensor(labels)}

    def drawn_length(self, draw: random.Random) -> int:
        """Draw the length of a training row, uniformly up to the trained length."""
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
    """Recall the bit that was written last: ``w 1  i 0  i 1  r 1`` (w: write, i: ignore, r: read; its bit is answered).

    On average, one of ``length`` instructions is a write or a read. All texts have the same number of instructions, so
    only distances depend on ``length``. Liu et al. 2023, arXiv:2306.00946, section 3.1; arXiv:2405.18719, section 5.1.
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
        """Draw one text; only the bits after reads are scored. The first instruction is a write, the last a read."""
        ids, labels, bit = list[int](), list[int](), 0
        for number in range(self.instructions):
            if number in (0, self.instructions - 1):
                instruction = self.read if number else self.write
            else:
                ignored = draw.random() * length >= 1
                instruction = self.ignore if ignored else draw.choice((self.write, self.read))
            value = bit if instruction == self.read else draw.randrange(2)
            bit = value if instruction == self.write else bit
            ids += [instruction, self.low + value]
            labels += [IGNORED, self.low + value if instruction == self.read else IGNORED]
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


class Largest(Puzzle):
    """Numbers of one token each, and the largest of them, which occurs once (arXiv:2410.01104, max retrieval)."""

    numbers = 32
    vocabulary, unit = ZERO + numbers, "numbers"

    def tokens(self, length: int) -> int:
        return length + 4

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        """Draw the largest number uniformly (never the smallest possible one), then smaller numbers around it."""
        largest = draw.randrange(1, self.numbers)
        text = [draw.randrange(largest) for _ in range(length)]
        text.insert(draw.randint(0, length), largest)
        return [BEGIN, *(ZERO + number for number in text), BETWEEN], [ZERO + largest]


def digits(number: int, count: int) -> list[int]:
    """The binary digits of a number as tokens, lowest first."""
    return [ZERO + (number >> place & 1) for place in range(count)]
