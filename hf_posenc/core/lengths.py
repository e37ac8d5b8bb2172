"""Trained length, target length and factor: any two define the third.

factor = target_length / trained_length        ≥ 1, always
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from hf_posenc.errors import LengthContradiction, shown

MAX_LENGTH = 2**31 - 1
MAX_FACTOR = 1e6
TOKENS = re.compile(r"(\d+(?:\.\d+)?)([km]?)", re.IGNORECASE | re.ASCII)
UNITS = {"": 1, "k": 1024, "m": 1024**2}


@dataclass(frozen=True)
class Lengths:
    """Trained length (pre-training context length) and target length, in tokens."""

    trained: int
    target: int

    @property
    def factor(self) -> float:
        """Target length divided by trained length."""
        return self.target / self.trained


def resolve_lengths(
    *, configured: int, trained_length: int | None = None, target_length: int | None = None, factor: float | None = None
) -> Lengths:
    """Resolve the lengths of a patch from the caller's arguments and the model's configuration.

    Args:
        configured: the trained length in the model's configuration.
        trained_length: overrides ``configured``.
        target_length: target length in tokens; by default the trained length times ``factor``.
        factor: target length divided by trained length; by default 1, or the quotient of the two lengths.

    Raises:
        LengthContradiction: a value is no number or out of range, or the three values contradict each other.
    """
    trained = whole_length("trained_length", configured if trained_length is None else trained_length)
    if factor is not None:
        check_factor(factor)
    if target_length is None:
        scaled = trained * (1.0 if factor is None else factor)
        return Lengths(trained, whole_length("target_length", round(scaled)))
    target = whole_length("target_length", target_length)
    if target < trained:
        raise LengthContradiction(
            f"target_length must be at least the trained length {trained}, got {target}. "
            'To shorten a model\'s view use scheme="window".'
        )
    if factor is not None and round(trained * factor) != target:
        raise LengthContradiction(
            f"factor {factor:g} times the trained length {trained} is {trained * factor:g}, but target_length is "
            f"{target}. Give one of the two."
        )
    return Lengths(trained, target)


def doubling_lengths(trained: int, target: int) -> list[int]:
    """``trained``, 2 · ``trained``, 4 · ``trained`` … below ``target``, and ``target``, in tokens."""
    lengths = [trained]
    while 2 * lengths[-1] < target:
        lengths.append(2 * lengths[-1])
    return sorted({*lengths, target})


def whole_length(name: str, value: int) -> int:
    """Validate a length in tokens, 1 … 2³¹ − 1; raises `LengthContradiction`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_LENGTH:
        raise LengthContradiction(
            f"{name} must be a whole number of tokens from 1 to {MAX_LENGTH}, got {shown(value)}. Pass an int."
        )
    return value


def check_factor(factor: float) -> None:
    """Refuse a factor that is no number from 1 to `MAX_FACTOR`; raises `LengthContradiction`."""
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not -math.inf < factor <= MAX_FACTOR:
        raise LengthContradiction(
            f"factor must be a finite number from 1 to {MAX_FACTOR:,.0f}, got {shown(factor)}. "
            "Pass target length / trained length."
        )
    if factor < 1:
        raise LengthContradiction(
            f'factor must be at least 1, got {factor:g}. To shorten a model\'s view use scheme="window".'
        )


def tokens(written: int | str, name: str = "target_length") -> int:
    """Parse a length in tokens: ``131072``, ``"131072"``, ``"128k"`` (k is 1024) or ``"1m"``.

    Raises:
        LengthContradiction: the text is no length, or the length is no whole number of at least 1.
    """
    if not isinstance(written, str):
        return whole_length(name, written)
    match = TOKENS.fullmatch(written.strip().replace(",", "").replace("_", ""))
    count = Fraction(match[1]) * UNITS[match[2].lower()] if match else Fraction(0)
    if count.denominator != 1 or count < 1:
        raise LengthContradiction(
            f"{name} is a whole number of tokens, got {written!r}. Write for example 131072, or 128k (k is 1024)."
        )
    return whole_length(name, int(count))
