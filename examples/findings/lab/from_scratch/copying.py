"""Copy a string of random digits: the retrieval that needs positions, or what a model counts instead of them.

Kazemnejad et al. 2023, arXiv:2305.19466, section 4 (Copy); Ruoss et al. 2023, arXiv:2305.16843 (Duplicate String).
"""

from __future__ import annotations

import random

from lab.from_scratch.task import BEGIN, BETWEEN, END, ZERO, Puzzle


class Copy(Puzzle):
    """A string of digits, and the same string again."""

    unit = "digits"

    def tokens(self, length: int) -> int:
        """String, copy and three marks."""
        return 2 * length + 3

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        """The copy is answered."""
        string = [draw.randrange(ZERO, ZERO + 10) for _ in range(length)]
        return [BEGIN, *string, BETWEEN], [*string, END]
