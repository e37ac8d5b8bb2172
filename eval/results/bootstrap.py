"""Bootstrap interval of the effective context length, over clusters of documents.

    draw G of G clusters with replacement, B times        the length of each draw        quantiles over the draws

All lengths of a draw have the same documents, so that what makes a document hard is in all of them, and the threshold
is compared with the same draw. Seeds are not drawn: runs with other seeds are other samples, reported apart.

A mean keeps Student's t (`hf_posenc.eval.results.comparison.interval`): with fewer than 32 clusters, BCa intervals of a
mean cover less (80 against 95 % of normal scores with 4 clusters, 91 against 94 % with 16). An effective length jumps
from one measured length to the next. An interval made of one interval for each length covers it in 98 to 100 % and is
wide; the percentile interval covers it in 95 to 100 % and is up to 40 % shorter (8 keys).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

import numpy as np

from hf_posenc.eval.results.comparison import wilson
from hf_posenc.eval.results.paired import FEWEST

RESAMPLES = 9999
LEVEL = 0.95
Bounds = tuple[float, float]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Margins:
    """By how much every document passes a threshold at every length: at a length, the mean passes if it is ≥ 0.

    Attributes:
        lengths: ascending, tokens.
        sums, counts: of the margins of each cluster, ``[cluster, length]``.
        sure, possible: constants that stand for the mean at lengths where all documents agree on a share, ``[length]``;
            NaN elsewhere.
    """

    lengths: tuple[int, ...]
    sums: Array
    counts: Array
    sure: Array
    possible: Array

    @classmethod
    def of(cls, scores: Mapping[int, Mapping[str, tuple[str, float]]], *, share: float | None = None) -> Margins:
        """Margins from cluster and value of each document, by length and name.

        Args:
            scores: margins; only documents that all lengths have are used.
            share: the threshold, where the scores are shares, 0 … 1: documents that all have the score 1, or all 0, are
                given Wilson's limits of their number, since all draws of them agree.
        """
        lengths = tuple(sorted(scores))
        common = sorted(set.intersection(*(set(scores[length]) for length in lengths)))
        names = [scores[lengths[0]][name][0] for name in common]
        values = [[scores[length][name][1] for length in lengths] for name in common]
        sums, counts = totals([{name: row} for name, row in zip(names, values, strict=True)])
        limits = [agreed([scores[length][name][1] for name in common], len(sums), share) for length in lengths]
        sure, possible = (np.array([limit[side] for limit in limits]) for side in (0, 1))
        return cls(lengths, sums, counts, sure, possible)

    def passing(self, drawn: Array, fixed: Array) -> Array:
        """Number, from 1, of the longest length that passes in every draw ``[..., cluster]``; 0 where none does."""
        means = np.where(np.isnan(fixed), ratio(self.sums, self.counts, drawn), fixed)
        numbers = np.arange(1, len(self.lengths) + 1)
        found: Array = np.where(means >= 0.0, numbers, 0).max(-1)
        return found


def effective_bounds(margins: Margins, *, seed: int = 0) -> tuple[int, int] | None:
    """Compute the 95 % percentile interval of the effective context length.

    Returns:
        Two measured lengths, tokens, 0 where none passes; None for fewer than `FEWEST` clusters.
    """
    clusters = len(margins.sums)
    if clusters < FEWEST:
        return None

    def statistic(drawn: Array) -> Array:
        return np.stack([margins.passing(drawn, fixed) for fixed in (margins.sure, margins.possible)]).astype(float)

    low, high = resampled(statistic, clusters, seed)
    lengths = (0, *margins.lengths)
    return lengths[floor(low[0])], lengths[ceil(high[1])]  # between two lengths: outwards


def resampled(statistic: Any, clusters: int, seed: int) -> tuple[Any, Any]:
    """Lower and upper limit of a statistic of indices ``[..., cluster]``, by scipy."""
    from scipy.stats import bootstrap

    found = bootstrap(
        (np.arange(clusters),), lambda drawn, axis=-1: statistic(np.moveaxis(drawn, axis, -1)), vectorized=True,
        n_resamples=RESAMPLES, batch=1000, confidence_level=LEVEL, method="percentile", rng=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    return found.low, found.high


def totals(documents: Sequence[Mapping[str, Sequence[float]]]) -> tuple[Array, Array]:
    """Sums and counts of values by cluster, ``[cluster, column]`` each."""
    rows: dict[str, list[Sequence[float]]] = defaultdict(list)
    for document in documents:
        for name, values in document.items():
            rows[name].append(values)
    sums = [np.sum(found, axis=0) for found in rows.values()]
    counts = [[len(found)] * len(found[0]) for found in rows.values()]
    return np.array(sums, dtype=float), np.array(counts, dtype=float)


def ratio(sums: Array, counts: Array, drawn: Array) -> Array:
    """Mean over the documents of drawn clusters, ``[..., column]``."""
    found: Array = sums[drawn].sum(-2) / counts[drawn].sum(-2)
    return found


def agreed(margins: Sequence[float], clusters: int, share: float | None) -> Bounds:
    """Wilson's limits less the threshold, where all margins are those of the share 0 or 1; else NaN."""
    for value in (0.0, 1.0):
        if share is not None and clusters and np.allclose(margins, value - share, rtol=0.0, atol=1e-12):
            low, high = wilson(value, clusters)
            return low - share, high - share
    return float("nan"), float("nan")
