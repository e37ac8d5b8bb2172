"""Rules for the slopes of ALiBi's heads."""

from __future__ import annotations

import math


def code_slopes(heads: int, bias_max: float = 8.0) -> list[float]:
    """The released rule: geometric for a power of two; else those of the power below, and every second above it."""
    below = 2 ** math.floor(math.log2(heads))
    return geometric_slopes(below, bias_max) + geometric_slopes(2 * below, bias_max)[0::2][: heads - below]


def geometric_slopes(heads: int, bias_max: float = 8.0) -> list[float]:
    """2^(−bias_max (h + 1) / heads)."""
    return [2 ** (-bias_max * (h + 1) / heads) for h in range(heads)]


SLOPE_RULES = {"code": code_slopes, "geometric": geometric_slopes, "learned": code_slopes}
