"""Sort a list of digits.

Kazemnejad et al. 2023, arXiv:2305.19466, section 4 (Sorting, single digits).
"""

from __future__ import annotations

import random

from lab.from_scratch.task import BEGIN, BETWEEN, END, ZERO, Puzzle


class Sorting(Puzzle):
    """Random digits, and the same digits in ascending order."""

    unit = "digits"

    def tokens(self, length: int) -> int:
        """The list, the sorted list and three marks."""
        return 2 * length + 3

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        """The sorted list is answered."""
        listed = [draw.randrange(ZERO, ZERO + 10) for _ in range(length)]
        return [BEGIN, *listed, BETWEEN], [*sorted(listed), END]
