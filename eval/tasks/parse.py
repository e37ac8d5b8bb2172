"""Parse and validate option values of tasks: from JSON values or command-line text to numbers and lists."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_posenc.core.lengths import MAX_LENGTH
from hf_posenc.errors import shown
from hf_posenc.eval.errors import TaskOptionOutOfRange


def lengths_of(value: Any) -> tuple[int, ...]:
    """Lengths, ascending, each once.

    Raises:
        TaskOptionOutOfRange: one is no length in tokens, or there is none.
    """
    lengths = tuple(sorted({whole("lengths", one) for one in listed(value)}))
    if not lengths:
        raise TaskOptionOutOfRange("The task has no lengths. Pass --metadata '{\"lengths\": [256, 512]}'.")
    return lengths


def longest_of(value: Any, lengths: Sequence[int]) -> int:
    """Tokens available before every target; by default the longest of the lengths.

    Raises:
        TaskOptionOutOfRange: it is no count, or a length is longer.
    """
    longest = lengths[-1] if value is None else whole("longest", value)
    if longest < lengths[-1]:
        raise TaskOptionOutOfRange(
            f"longest is {longest}, shorter than length {lengths[-1]}. Raise it, or leave it out."
        )
    return longest


def depths_of(value: Any) -> tuple[float, ...]:
    """Depths, in their order.

    Raises:
        TaskOptionOutOfRange: one is no share, or there is none.
    """
    depths = tuple(map(share, listed(value)))
    if not depths:
        raise TaskOptionOutOfRange("depths has no number. Pass shares from 0 to 1, such as 0.5, the middle.")
    return depths


def listed(value: Any) -> Sequence[Any]:
    """Parse a list from JSON, from ``"256;512"`` on a command line, or from a single number."""
    if value is None:
        return ()
    if isinstance(value, str):
        return [part for part in re.split(r"[;,\s]+", value.strip("[]")) if part]
    return value if isinstance(value, Sequence) and not isinstance(value, bytes) else (value,)


def paths(value: Any, name: str = "docs") -> Sequence[Any]:
    """A path or several; a path may hold blanks and commas.

    Raises:
        TaskOptionOutOfRange: it is neither.
    """
    found = (() if value is None else (value,)) if isinstance(value, (str, Path, type(None))) else value
    if not isinstance(found, (list, tuple)) or not all(isinstance(one, (str, Path)) and str(one) for one in found):
        raise TaskOptionOutOfRange(f"{name} must be paths or the name of a dataset, got {shown(value)}. Pass one.")
    return found


def flag(name: str, value: Any) -> bool:
    """``value`` as yes or no, also from command-line text.

    Raises:
        TaskOptionOutOfRange: it is neither.
    """
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if str(value).lower() not in known:
        raise TaskOptionOutOfRange(f"{name} must be true or false, got {shown(value)}. Pass one of the two.")
    return known[str(value).lower()]


def whole(name: str, value: Any) -> int:
    """``value`` as a count, 1 … 2³¹ − 1, also from command-line text.

    Raises:
        TaskOptionOutOfRange: it is none.
    """
    number = count(value)
    if number is None or not 1 <= number <= MAX_LENGTH:
        raise TaskOptionOutOfRange(
            f"{name} must be whole numbers from 1 to {MAX_LENGTH}, got {shown(value)}. Pass for example 512."
        )
    return number


def seed_of(value: Any) -> int:
    """``value`` as a seed, 0 … 2³² − 1.

    Raises:
        TaskOptionOutOfRange: it is none.
    """
    number = count(value)
    if number is None or not 0 <= number < 2**32:
        raise TaskOptionOutOfRange(
            f"seed must be a whole number from 0 to {2**32 - 1}, got {shown(value)}. Pass for example 0."
        )
    return number


def count(value: Any) -> int | None:
    """``value`` as a whole number; None where it is not one, which a truth value is not."""
    if isinstance(value, bool):
        return None
    try:
        number = int(value)
        return number if float(value) == number else None
    except (TypeError, ValueError, OverflowError):
        return None


def share(value: Any) -> float:
    """``value`` as a depth, 0 … 1.

    Raises:
        TaskOptionOutOfRange: it is none.
    """
    try:
        depth = -1.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        depth = -1.0
    if not 0.0 <= depth <= 1.0:
        raise TaskOptionOutOfRange(
            f"depths must lie between 0 and 1, got {shown(value)}. 0.5 is the middle of the text."
        )
    return depth
