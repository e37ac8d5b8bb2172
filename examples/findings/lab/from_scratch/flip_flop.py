"""Flip-flop: recall the bit that was written last.

    w 1  i 0  i 1  r 1  w 0  i 1  r 0         w: write the bit, i: ignore it, r: read, its bit is the answer

The lengths of the task are mean distances: of ``length`` instructions one is a write or a read, each as likely, and the
others are to be ignored. All texts have as many instructions, so that sparse texts change distances and nothing else.

Liu, Ash, Goel, Krishnamurthy, Zhang 2023, "Exposing Attention Glitches with Flip-Flop Language Modeling",
arXiv:2306.00946, section 3.1; Golovneva et al. 2024, arXiv:2405.18719, section 5.1.
"""

from __future__ import annotations

import random

import torch

from lab.from_scratch.task import IGNORED, Puzzle, Row

WRITE, READ, IGNORE, LOW = range(4)
INSTRUCTIONS = 24


class FlipFlop(Puzzle):
    """Instructions with a bit each: the first is a write and the last a read; the bits of all reads are answered."""

    vocabulary = LOW + 2
    unit = "instructions to a write or read"

    def tokens(self, length: int) -> int:
        """An instruction and its bit are two tokens, whatever the mean distance."""
        return 2 * INSTRUCTIONS

    def drawn_length(self, draw: random.Random) -> int:
        """Always the trained distance, as in the paper."""
        return self.budget.trained

    def row(self, length: int, draw: random.Random, room: int) -> Row:
        """One text; only the bits after reads are scored."""
        ids, labels, bit = list[int](), list[int](), 0
        for number in range(INSTRUCTIONS):
            instruction = self.instruction(number, length, draw)
            shown = bit if instruction == READ else draw.randrange(2)
            bit = shown if instruction == WRITE else bit
            ids += [instruction, LOW + shown]
            labels += [IGNORED, LOW + shown if instruction == READ else IGNORED]
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}

    def instruction(self, number: int, length: int, draw: random.Random) -> int:
        """What the instruction at a place is."""
        if number in (0, INSTRUCTIONS - 1):
            return READ if number else WRITE
        return IGNORE if draw.random() * length >= 1 else draw.choice((WRITE, READ))
