"""Parse lengths and format sizes: ``128k`` tokens, ``0.5 MiB``."""

from __future__ import annotations

import re
from fractions import Fraction

from hf_posenc.core.lengths import whole_length
from hf_posenc.errors import LengthContradiction

TOKENS = re.compile(r"(\d+(?:\.\d+)?)([km]?)", re.IGNORECASE | re.ASCII)
UNITS = {"": 1, "k": 1024, "m": 1024**2}
BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def tokens(written: int | str) -> int:
    """``131072``, ``"131072"``, ``"128k"`` (k is 1024) or ``"1m"`` as a length in tokens.

    Raises:
        LengthContradiction: it is no such length, or no whole number of at least 1.
    """
    if not isinstance(written, str):
        return whole_length("target_length", written)
    found = TOKENS.fullmatch(written.strip().replace(",", "").replace("_", ""))
    count = Fraction(found[1]) * UNITS[found[2].lower()] if found else Fraction(1, 2)
    if count.denominator != 1:
        raise LengthContradiction(
            f"A target is a whole number of tokens, got {written!r}. Write for example 131072, or 128k (k is 1024)."
        )
    return whole_length("target_length", int(count))


def size(count: int) -> str:
    """Bytes in the largest binary unit of which there is at least one: ``"512 KiB"``, ``"12.6 GiB"``."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(BINARY) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.0f} {BINARY[unit]}" if value == int(value) or value >= 100 else f"{value:.1f} {BINARY[unit]}"
