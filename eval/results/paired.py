"""Paired differences: each scheme minus a reference on the same documents, with interval and corrected p-value.

    d_i = y_i(scheme) − y_i(reference)        mean ± t(G − 1) · SE(d̄)        G clusters of documents

What makes one document harder than another is in both scores and leaves their difference: two schemes whose intervals
overlap can differ significantly. Where answers are right or wrong, d̄ and its error are those of Agresti and Min, see
`adjusted`. A table with many comparisons finds a difference by chance sooner than one with few, so its p-values are
corrected together: Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of
Statistics 6(2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from statistics import fmean
from typing import Literal

from hf_posenc.core.student_t import student_t, two_sided_p
from hf_posenc.eval.results.rows import FEWEST, DocumentScore, by_row, standard_error

LEVEL = 0.05
ROUNDING = 1e-5
"""Differences of the mean below this are those of float32 arithmetic in another order, and are never sure."""
NO_SPREAD = 1e-12
"""Standard errors below this are those of documents that all differ by the same."""

Verdict = Literal["better", "worse", "different", "undecided"]
MARKS: dict[Verdict, str] = {"better": "+", "worse": "−", "different": "≠", "undecided": "?"}


@dataclass(frozen=True)
class Difference:
    """A scheme minus the reference, on the documents that both have.

    Attributes:
        scheme, reference: labels.
        task, metric, length: of the row.
        difference: mean over documents.
        stderr: of the mean, over clusters; None for a single one.
        low, high: 95 % interval by Student's t, for this comparison alone; around Agresti and Min's centre, and between
            −1 and 1, where scores are shares. None for fewer than `FEWEST` clusters, or where all losses differ by the
            same.
        n, clusters: documents, and clusters of them.
        p: two-sided p-value of no difference.
        p_holm: corrected for all comparisons of the table, which is one metric of one task.
        verdict: ``"better"`` or ``"worse"`` where ``p_holm`` is below 0.05, and ``"different"`` where the task does not
            say which is better.
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
    """Differences of every scheme from the reference, over all depths; ``better`` says whether higher is."""
    base = by_row(scores[reference])
    found = [
        difference
        for label, own in scores.items()
        if label != reference
        for row, ours in by_row(own).items()
        if row in base and row[2] is None and (difference := paired(label, reference, ours, base[row]))
    ]
    tables = dict.fromkeys((one.task, one.metric) for one in found)
    corrected = {table: iter(holm([one.p for one in found if (one.task, one.metric) == table])) for table in tables}
    return [judged(one, next(corrected[one.task, one.metric]), better.get((one.task, one.metric))) for one in found]


def paired(
    label: str, reference: str, ours: Sequence[DocumentScore], theirs: Sequence[DocumentScore]
) -> Difference | None:
    """The difference of one row; None where no document is in both."""
    other = {score.document: score.value for score in theirs}
    pairs = [(score, score.value - other[score.document]) for score in ours if score.document in other]
    if not pairs:
        return None
    values, first = [value for _, value in pairs], ours[0]
    mean = fmean(values)
    stderr, clusters = standard_error(values, [score.cluster for score, _ in pairs])
    found = Difference(
        label, reference, first.task, first.metric, first.length, mean, stderr, None, None, len(values), clusters, None
    )
    if stderr is None or clusters < FEWEST:
        return found
    scored = [value for score, _ in pairs for value in (score.value, other[score.document])]
    shares, centre, error = all(0.0 <= value <= 1.0 for value in scored), mean, stderr
    if shares and (is_binary(scored) or stderr < NO_SPREAD):
        centre, error = adjusted(mean, stderr, clusters)
    if error < NO_SPREAD:
        return replace(found, p=1.0 if abs(mean) < ROUNDING else None)
    half, farthest = student_t(clusters - 1) * error, 1.0 if shares else inf
    p = 1.0 if abs(mean) < ROUNDING else two_sided_p(centre / error, clusters - 1)
    return replace(found, low=max(-farthest, centre - half), high=min(farthest, centre + half), p=p)


def is_binary(scores: Iterable[float]) -> bool:
    """Whether each score says that an answer is right or wrong."""
    return all(score in (0.0, 1.0) for score in scores)


def adjusted(mean: float, stderr: float, clusters: int) -> tuple[float, float]:
    """Centre and standard error for the difference of two shares: Agresti and Min's, over clusters.

    Their own standard error is 0 where all documents agree, however few they are, and grows with the first that does
    not: more evidence would be less sure. Four halves of a document are added, one for each outcome of a pair:

        d' = Σ d_g / (G + 2)        SE² = ((Σ d_g² + 1) / (G + 2) − d'²) / (G + 2)        d_g  mean of cluster g

    Agresti, Min 2005, "Simple Improved Confidence Intervals for Comparing Matched Proportions", Statistics in Medicine
    24(5), where each document is a cluster. Clusters of unlike size count by their share of the documents.
    """
    squares = clusters * ((clusters - 1) * stderr**2 + mean**2)
    centre = clusters * mean / (clusters + 2)
    return centre, sqrt(((squares + 1) / (clusters + 2) - centre**2) / (clusters + 2))


def holm(values: Sequence[float | None]) -> Iterator[float | None]:
    """Corrected p-values in the same order: the k-th smallest of m times m − k + 1, none below the one before."""
    order = sorted((value, index) for index, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (value, index) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * value))
        corrected[index] = highest
    return iter(corrected)


def judged(difference: Difference, p_holm: float | None, higher_is_better: bool | None) -> Difference:
    """A difference with its corrected p-value and what follows from it."""
    verdict: Verdict = "undecided"
    if p_holm is not None and p_holm < LEVEL:
        gain = (difference.difference > 0) == higher_is_better
        verdict = "different" if higher_is_better is None else "better" if gain else "worse"
    return replace(difference, p_holm=p_holm, verdict=verdict)
