"""Add two binary numbers.

Kazemnejad et al. 2023, arXiv:2305.19466, section 4 (Addition), in base 10 there.
"""

from __future__ import annotations

import random

from lab.from_scratch.task import BEGIN, BETWEEN, END, ZERO, Puzzle


class Addition(Puzzle):
    """Two binary numbers with equally many digits, and their sum; the lowest digit comes first, as carries run."""

    unit = "binary digits a number"

    def tokens(self, length: int) -> int:
        """Two numbers, a sum of one digit more, and four marks."""
        return 3 * length + 5

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        """The sum is answered."""
        numbers = [draw.randrange(2**length) for _ in range(2)]
        first, second = (digits(number, length) for number in numbers)
        return [BEGIN, *first, BETWEEN, *second, BETWEEN], [*digits(sum(numbers), length + 1), END]


def digits(number: int, count: int) -> list[int]:
    """The binary digits of a number as tokens, lowest first."""
    return [ZERO + (number >> place & 1) for place in range(count)]
