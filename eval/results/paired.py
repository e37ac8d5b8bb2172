"""Paired differences: each scheme minus a reference on the same documents, with interval and corrected p-value.

    d_i = y_i(scheme) − y_i(reference)        mean ± t(G − 1) · SE(d̄)        G clusters of documents

The difficulty of a document is part of both scores and cancels in their difference, so two schemes can differ
significantly although their own intervals overlap. If answers are either right or wrong, the mean and its error are
those of Agresti and Min, see `adjusted`. The more comparisons a table has, the likelier is a difference by chance, so
its p-values are corrected together: Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian
Journal of Statistics 6(2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from statistics import fmean
from typing import Literal

from hf_posenc.core.student_t import student_t, two_sided_p
from hf_posenc.eval.results.rows import FEWEST, DocumentScore, by_row, standard_error

LEVEL = 0.05
ROUNDING = 1e-5
"""A smaller mean difference can come from the order of float32 operations, and is never significant."""
NO_SPREAD = 1e-12
"""A smaller standard error means that all documents differ by the same amount."""

Verdict = Literal["better", "worse", "different", "undecided"]
MARKS: dict[Verdict, str] = {"better": "+", "worse": "−", "different": "≠", "undecided": "?"}


@dataclass(frozen=True)
class Difference:
    """A scheme minus the reference, on the documents that both have.

    Attributes:
        scheme, reference: labels.
        task, metric, length: as in the row.
        difference: mean over documents.
        stderr: standard error of the mean, over clusters; None for a single cluster.
        low, high: 95 % interval by Student's t, for this comparison alone. For shares it is limited to −1 … 1, and for
            right or wrong answers it is around Agresti and Min's centre. None for fewer than `FEWEST` clusters, or if
            all losses differ by the same amount.
        n, clusters: number of documents, and of their clusters.
        p: two-sided p-value of no difference.
        p_holm: p-value corrected for all comparisons of the table, which is one metric of one task.
        verdict: ``"better"`` or ``"worse"`` if ``p_holm`` is below 0.05, ``"different"`` if the task does not say
            whether higher is better.
    """

    scheme: str
    reference: str
    task: str
    metric: str
    length: int | None
    difference: float
    stderr: float | None
    low: float | None
    high: float | None
    n: int
    clusters: int
    p: float | None
    p_holm: float | None = None
    verdict: Verdict = "undecided"

    @property
    def mark(self) -> str:
        """The verdict as a symbol."""
        return MARKS[self.verdict]


def paired_differences(
    scores: Mapping[str, Sequence[DocumentScore]], reference: str, better: Mapping[tuple[str, str], bool | None]
) -> list[Difference]:
    """Differences of every scheme from the reference, over all depths; ``better``: whether higher is better."""
    base = by_row(scores[reference])
    differences: list[Difference] = []
    for label, own in scores.items():
        if label == reference:
            continue
        for row, row_scores in by_row(own).items():
            over_depths = row in base and row_scores[0].depth is None
            if over_depths and (difference := paired(label, reference, row_scores, base[row])) is not None:
                differences.append(difference)
    for task, metric in dict.fromkeys((one.task, one.metric) for one in differences):
        table = [number for number, one in enumerate(differences) if (one.task, one.metric) == (task, metric)]
        corrected = holm([differences[number].p for number in table])
        for number, p_holm in zip(table, corrected, strict=True):
            differences[number] = judged(differences[number], p_holm, better.get((task, metric)))
    return differences


def paired(
    label: str, reference: str, scores: Sequence[DocumentScore], reference_scores: Sequence[DocumentScore]
) -> Difference | None:
    """Difference of one row from the reference on their common documents; None if they have none."""
    base = {score.document: score.value for score in reference_scores}
    pairs = [(score, score.value - base[score.document]) for score in scores if score.document in base]
    if not pairs:
        return None
    values = [value for _, value in pairs]
    first, mean = scores[0], fmean(values)
    stderr, clusters = standard_error(values, [score.cluster for score, _ in pairs])
    difference = Difference(
        label, reference, first.task, first.metric, first.length, mean, stderr, None, None, len(values), clusters, None
    )
    if stderr is None or clusters < FEWEST:
        return difference
    both = [value for score, _ in pairs for value in (score.value, base[score.document])]
    shares = all(0.0 <= value <= 1.0 for value in both)
    centre, error = mean, stderr
    if shares and (stderr < NO_SPREAD or all(value in (0.0, 1.0) for value in both)):
        centre, error = adjusted(mean, stderr, clusters)
    if error < NO_SPREAD:
        return replace(difference, p=1.0 if abs(mean) < ROUNDING else None)
    half = student_t(clusters - 1) * error
    farthest = 1.0 if shares else inf
    p = 1.0 if abs(mean) < ROUNDING else two_sided_p(centre / error, clusters - 1)
    return replace(difference, low=max(-farthest, centre - half), high=min(farthest, centre + half), p=p)


def adjusted(mean: float, stderr: float, clusters: int) -> tuple[float, float]:
    """Centre and standard error of the difference of two shares, after Agresti and Min, over clusters.

    The usual standard error is 0 if all documents agree, even if there are few of them. It grows with the first one
    that disagrees, so that more evidence would be less certain. Adding half a document for each of the four outcomes of
    a pair avoids this:

        d' = Σ d_g / (G + 2)        SE² = ((Σ d_g² + 1) / (G + 2) − d'²) / (G + 2)        d_g  mean of cluster g

    Agresti, Min 2005, "Simple Improved Confidence Intervals for Comparing Matched Proportions", Statistics in Medicine
    24(5), where each document is a cluster. Clusters of different sizes count by their share of the documents.
    """
    squares = clusters * ((clusters - 1) * stderr**2 + mean**2)
    centre = clusters * mean / (clusters + 2)
    return centre, sqrt(((squares + 1) / (clusters + 2) - centre**2) / (clusters + 2))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm-corrected p-values in the order of ``values``: the k-th smallest of m times m − k + 1, never decreasing."""
    order = sorted((value, index) for index, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (value, index) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * value))
        corrected[index] = highest
    return corrected


def judged(difference: Difference, p_holm: float | None, higher_is_better: bool | None) -> Difference:
    """Add the corrected p-value and the verdict to a difference."""
    verdict: Verdict = "undecided"
    if p_holm is not None and p_holm < LEVEL:
        verdict = "better" if (difference.difference > 0) == higher_is_better else "worse"
        if higher_is_better is None:
            verdict = "different"
    return replace(difference, p_holm=p_holm, verdict=verdict)
