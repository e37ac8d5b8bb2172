"""Student's t, for confidence intervals and tests of a mean.

    P(|T| ≥ t) = I_x(ν/2, 1/2),  x = ν / (ν + t²)          I: the regularized incomplete beta function

I is computed from its continued fraction by Lentz's method: Press et al. 2007, "Numerical Recipes", section 6.4.

Not `scipy.special.stdtrit` and `stdtr`, as scipy comes only with the extra ``eval``, and fine-tuning reports intervals
without it. The tests compare the functions here with mpmath.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import exp, inf, lgamma, log
from statistics import fmean, stdev

ROUNDS = 10_000
"""Terms of the continued fraction at most; it needs some √ν of them."""


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % confidence interval; NaN for a single value."""
    half = float("nan") if len(values) < 2 else student_t(len(values) - 1) * stdev(values) / len(values) ** 0.5
    return fmean(values), half


@lru_cache(maxsize=1024)
def student_t(freedom: float) -> float:
    """97.5 % quantile of Student's t, by bisection: half a 95 % interval is so many standard errors."""
    low, high = 0.0, 16.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if two_sided_p(middle, freedom) > 0.05 else (low, middle)
    return high


def two_sided_p(t: float, freedom: float) -> float:
    """Probability that Student's t is as far from 0 as ``t``, or farther."""
    if t == 0.0 or abs(t) == inf:
        return float(t == 0.0)
    whole = freedom + t * t
    return incomplete_beta(freedom / whole, t * t / whole, freedom / 2, 0.5)


def incomplete_beta(x: float, rest: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b), for 0 < x < 1; ``rest`` is 1 − x, without cancellation."""
    if x > (a + 1) / (a + b + 2):  # the continued fraction converges fast below
        return 1.0 - incomplete_beta(rest, x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(rest))
    tiny = 1e-300
    c, d = 1.0, 1.0 / ((1.0 - (a + b) * x / (a + 1.0)) or tiny)
    value = d
    for m in range(1, ROUNDS):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / ((1.0 + factor * d) or tiny)
            c = (1.0 + factor / c) or tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return front * value / a
