"""DeBERTa's buckets of distances: one distance each when near, geometrically wider when far."""

from __future__ import annotations


def bucket_starts(buckets: int, span: int) -> tuple[int, ...]:
    """The smallest distance of each bucket after the first.

    Bucket m + c, c ≥ 1, starts at the smallest n with (n / m)^(m − 1) > ((span − 1) / m)^(c − 1). Computed in
    integers, as a rounded logarithm may be off at an exact power.
    """
    exact = buckets // 2
    starts = list(range(1, exact + 1))
    for c in range(1, buckets - exact + 1):
        widest = ((span - 1) / exact) ** ((c - 1) / (exact - 1))
        n = max(starts[-1], int(exact * widest) - 1, exact + 1)  # at most a few below
        while n ** (exact - 1) * exact ** (c - 1) <= (span - 1) ** (c - 1) * exact ** (exact - 1):
            n += 1
        starts.append(n)
    return tuple(starts)
