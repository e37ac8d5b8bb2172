"""Find the only digit among noise: the shortest task in which attention has to stay on one token of many.

Nakanishi 2025, arXiv:2501.19399, section 3.4 (Needle-In-A-Haystack), reduced to what needs no positions.
"""

from __future__ import annotations

import random

from hf_posenc.insight.findings.from_scratch.task import BEGIN, BETWEEN, ZERO, Puzzle

NOISE = ZERO + 10
NOISES = 16


class Needle(Puzzle):
    """A digit at a random place among tokens of sixteen other kinds, and the digit again."""

    vocabulary = NOISE + NOISES
    unit = "tokens of noise"

    def tokens(self, length: int) -> int:
        """Noise, digit, answer and two marks."""
        return length + 4

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        """The digit is answered."""
        text = [draw.randrange(NOISE, NOISE + NOISES) for _ in range(length)]
        digit = draw.randrange(ZERO, ZERO + 10)
        text.insert(draw.randint(0, length), digit)
        return [BEGIN, *text, BETWEEN], [digit]
