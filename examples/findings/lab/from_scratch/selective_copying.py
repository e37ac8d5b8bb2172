"""Selective copying: repeat the digits of a text in their order and leave out the blanks between them.

The lengths of the task are numbers of blanks; the number of digits stays the same, so that more blanks change distances
and nothing else.

Golovneva, Wang, Weston, Sukhbaatar 2024, arXiv:2405.18719, section 5.2, after Gu, Dao 2023, arXiv:2312.00752.
"""

from __future__ import annotations

import random

from lab.from_scratch.task import BEGIN, BETWEEN, END, ZERO, Puzzle

DIGITS = 6
BLANK = ZERO + 10


class SelectiveCopying(Puzzle):
    """Six digits at random places among blanks, and the digits alone."""

    vocabulary = BLANK + 1
    unit = "blanks"

    def tokens(self, length: int) -> int:
        """Blanks, digits, their copy and three marks."""
        return length + 2 * DIGITS + 3

    def drawn_length(self, draw: random.Random) -> int:
        """Always the trained number of blanks, as in the paper."""
        return self.budget.trained

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        """The digits are answered."""
        digits = [draw.randrange(ZERO, ZERO + 10) for _ in range(DIGITS)]
        text = [BLANK] * (length + DIGITS)
        for place, digit in zip(sorted(draw.sample(range(len(text)), DIGITS)), digits, strict=True):
            text[place] = digit
        return [BEGIN, *text, BETWEEN], [*digits, END]
