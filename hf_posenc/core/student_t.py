"""Student's t distribution, for confidence intervals and tests of a mean; scipy is imported when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean, stdev


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % confidence interval; NaN for a single value."""
    half = float("nan") if len(values) < 2 else student_t(len(values) - 1) * stdev(values) / len(values) ** 0.5
    return fmean(values), half


@lru_cache(maxsize=1024)
def student_t(freedom: float) -> float:
    """97.5 % quantile of Student's t: half the width of a 95 % interval, in standard errors."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def two_sided_p(t: float, freedom: float) -> float:
    """Probability that Student's t has at least the absolute value of ``t``."""
    from scipy.special import stdtr

    return 2.0 * float(stdtr(freedom, -abs(t)))
