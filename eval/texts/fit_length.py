"""Find how much filler text fits a number of tokens.

    units(length) = max { n : tokens(prompt(n)) ≤ length }        found by interpolation, safeguarded by bisection

A unit of filler costs at least one token, or the search would not end; a tokenizer with fewer tokens than units,
because it fuses whatever it does not know, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hf_posenc.eval.errors import LengthTooShort, TokenizerTooPoor

FIRST_PROBE = 16


class Exercise(Protocol):
    """A question about fixed answers, hidden in any amount of filler."""

    @property
    def answers(self) -> tuple[str, ...]:
        """The right answers, in order."""

    @property
    def pinned(self) -> int:
        """Index of the answer at the requested depth."""

    def prompt(self, units: int) -> str:
        """The prompt with ``units`` units of filler."""


def most_units(tokens: Callable[[int], int], length: int, what: str) -> int:
    """Return the largest number of units whose prompt has at most ``length`` tokens.

    Args:
        tokens: token count of the prompt with a number of units.
        length: in tokens.
        what: name of the prompt for the error, such as ``"passkey"``.

    Raises:
        LengthTooShort: not even a prompt without filler fits.
        TokenizerTooPoor: more units than tokens fit.
    """
    low, low_cost, high, high_cost = 0, tokens(0), length + 1, 0
    if low_cost > length:
        raise LengthTooShort(
            f"A {what} prompt with its answer needs at least {low_cost} tokens with this tokenizer, "
            f"got length {length}. Ask for a length of {low_cost} or more."
        )
    probe, rounds = FIRST_PROBE, 0
    while high - low > 1:
        probe = min(max(probe, low + 1), high - 1)
        cost = tokens(probe)
        if cost <= length:
            low, low_cost, rate = probe, cost, (cost - low_cost) / (probe - low)
        else:
            high, high_cost, rate = probe, cost, (cost - low_cost) / (probe - low)
        if high_cost:
            rate = (high_cost - low_cost) / (high - low)
        rounds += 1  # interpolation can creep up on one side; every third probe halves what is left
        halve = high_cost > 0 and rounds % 3 == 0
        probe = (low + high) // 2 if halve else low + int((length - low_cost) / max(rate, 0.5))
    if low == length:
        raise TokenizerTooPoor(
            f"This tokenizer reads more than {length} units of filler as at most {length} tokens. "
            "Use a tokenizer that has a token for every word."
        )
    return low
