"""Find the largest of many numbers: attention has to tell one of them from rivals that are nearly as large.

Veličković et al. 2024, "softmax is not enough (for sharp size generalisation)", arXiv:2410.01104 (max retrieval).
"""

from __future__ import annotations

import random

from lab.from_scratch.task import BEGIN, BETWEEN, ZERO, Puzzle

NUMBERS = 32


class Largest(Puzzle):
    """Numbers, one token each, and the largest of them, which comes once."""

    vocabulary = ZERO + NUMBERS
    unit = "numbers"

    def tokens(self, length: int) -> int:
        """The numbers, the largest of them, the answer and two marks."""
        return length + 4

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        """The largest is answered; it is any number but the smallest, equally often at every length."""
        largest = draw.randrange(1, NUMBERS)
        text = [draw.randrange(largest) for _ in range(length)]
        text.insert(draw.randint(0, length), largest)
        return [BEGIN, *(ZERO + number for number in text), BETWEEN], [ZERO + largest]
