"""The verdict on a finding, a pure function of its claims and its raw cells.

    d_is   gain of document i under seed s, both sides on the same document
    SE²    = SE²(documents) + SE²(seeds)          of the means over seeds, and of the means over documents
    t      = distance of the mean gain from the nearest bound of the claim's region / SE

A claim surely *holds* where the mean gain lies in its region and *is reversed* where it lies outside, if p < 0.05 after
Holm's correction over the claims of the finding; otherwise it is undecided. All claims hold: *reproduced*. One is
reversed: *not reproduced*. Otherwise, and wherever the model lacks an ability that the finding needs: *not decidable at
this size*.

Documents come in clusters (Cameron, Miller 2015), and seeds are another sample of another thing: their variances add,
which overstates the error a little (Owen 2007, "The Pigeonhole Bootstrap", Annals of Applied Statistics 1(2)); degrees
of freedom after Welch and Satterthwaite. With one seed, the result is about that one model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import erfc, inf, sqrt
from statistics import fmean, stdev
from typing import Any, Literal

from hf_posenc.core.student_t import student_t, two_sided_p
from hf_posenc.eval.results.comparison import wilson
from hf_posenc.eval.results.documents import standard_error
from hf_posenc.eval.results.paired import FEWEST, LEVEL, NO_SPREAD, ROUNDING, adjusted, holm, is_binary
from lab.cells import DocumentScore, FindingCell
from lab.claims import Claim, Metric, Side

Outcome = Literal["holds", "reversed", "undecided"]
Verdict = Literal["reproduced", "not reproduced", "not decidable at this size"]


@dataclass(frozen=True)
class Judged:
    """A claim with what the cells say of it.

    Attributes:
        claim: the claim.
        gain: mean over documents and seeds of first minus second, positive where the first is better; of an `Able` the
            mean score.
        low, high: its 95 % interval, for this claim alone; None where there is none.
        documents, clusters, seeds: how many of each.
        stderr_documents, stderr_seeds: the two parts of the standard error; None where there is one of them only.
        p: two-sided p-value of the gain lying on the nearest bound of the claim's region.
        p_holm: corrected for all claims of the finding.
        outcome: what follows.
    """

    claim: Claim
    gain: float
    low: float | None
    high: float | None
    documents: int
    clusters: int
    seeds: int
    stderr_documents: float | None
    stderr_seeds: float | None
    p: float | None
    p_holm: float | None = None
    outcome: Outcome = "undecided"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the claim."""
        return {name: value for name, value in asdict(self).items() if name != "claim"}


def judge(claims: Sequence[Claim], metrics: Sequence[Metric], cells: Iterable[FindingCell]) -> list[Judged]:
    """Judge all claims of a finding together.

    Raises:
        LookupError: a claim names a cell that is not there, or its two sides have no document in common.
    """
    found = {(cell.variant, cell.at, cell.seed): cell for cell in cells}
    alone = [judged_alone(claim, metric_of(claim, metrics), found) for claim in claims]
    return [with_outcome(one, p) for one, p in zip(alone, holm([one.p for one in alone]), strict=True)]


def verdict_on(judged: Sequence[Judged], needed: Sequence[Judged] = ()) -> Verdict:
    """The verdict that follows from the outcomes of all claims, and of the abilities that they need."""
    outcomes = {one.outcome for one in judged}
    if any(one.outcome != "holds" for one in needed):
        return "not decidable at this size"
    if "reversed" in outcomes:
        return "not reproduced"
    return "reproduced" if outcomes == {"holds"} else "not decidable at this size"


def metric_of(claim: Claim, metrics: Sequence[Metric]) -> Metric:
    """The metric of a claim: the one it names, else the first."""
    return next(metric for metric in metrics if claim.metric in ("", metric.name))


def judged_alone(claim: Claim, metric: Metric, cells: Mapping[tuple[str, float, int], FindingCell]) -> Judged:
    """Judge one claim, before the correction for the others."""
    sign = 1.0 if metric.higher_is_better else -1.0
    seeds = sorted({seed for _, _, seed in cells})
    of_sides = [[scores_of(cells, side, seed, metric) for side in claim.sides] for seed in seeds]
    names = sorted(set.intersection(*(set(scores) for sides in of_sides for scores in sides)))
    if not names:
        raise LookupError(f"{claim.sides} have no document in common. Measure them on the same documents.")
    gains = [[sign * difference([scores[name].value for scores in sides]) for name in names] for sides in of_sides]
    by_document = [fmean(of_seeds) for of_seeds in zip(*gains, strict=True)]
    gain = fmean(by_document)
    documents, clusters = standard_error(by_document, [of_sides[0][0][name].cluster for name in names])
    of_seeds = stdev(map(fmean, gains)) / sqrt(len(seeds)) if len(seeds) > 1 else None
    found = Judged(claim, gain, None, None, len(names), clusters, len(seeds), documents, of_seeds, None)
    binary = is_binary(scores[name].value for sides in of_sides for scores in sides for name in names)
    return with_interval(found, share=metric.unit == "share", binary=binary)


def difference(values: Sequence[float]) -> float:
    """The first value less the second, where there is one."""
    return values[0] - sum(values[1:])


def scores_of(
    cells: Mapping[tuple[str, float, int], FindingCell], side: Side, seed: int, metric: Metric
) -> dict[str, DocumentScore]:
    """The scores of one side of a claim by document.

    Raises:
        LookupError: there is no such cell, or it does not have the metric.
    """
    cell = cells.get((side.variant, side.at, seed))
    if cell is None or metric.name not in cell.scores:
        raise LookupError(
            f"There is no {metric.name} of {side.variant} at {side.at:g} with seed {seed}. Run the finding again."
        )
    return {score.document: score for score in cell.scores[metric.name]}


def with_interval(judged: Judged, *, share: bool, binary: bool) -> Judged:
    """Add the 95 % interval and the p-value; neither for fewer than `FEWEST` clusters of documents.

    Args:
        judged: without them.
        share: whether scores are shares.
        binary: whether each score is 0 or 1.
    """
    if judged.stderr_documents is None or judged.clusters < FEWEST:
        return judged
    alone = len(judged.claim.sides) == 1
    if share and alone and judged.stderr_documents < NO_SPREAD and judged.gain in (0.0, 1.0):
        low, high = wilson(judged.gain, judged.clusters)
        return replace(judged, low=low, high=high, p=score_test(judged.gain, judged.claim.region[0], judged.clusters))
    centre, of_documents = judged.gain, judged.stderr_documents
    if share and not alone and (binary or of_documents < NO_SPREAD):
        centre, of_documents = adjusted(judged.gain, of_documents, judged.clusters)
    error, freedom = combined_error(of_documents, judged.clusters, judged.stderr_seeds or 0.0, judged.seeds)
    distance = distance_to_bound(judged.claim, centre)
    if error < NO_SPREAD:  # all documents differ by the same: no sample of anything, unless they do not differ at all
        identical = abs(judged.gain) < ROUNDING
        return replace(judged, p=0.0 if identical and distance > ROUNDING else 1.0)
    half = student_t(freedom) * error
    p = 1.0 if distance < ROUNDING else two_sided_p(distance / error, freedom)
    least, most = (0.0 if alone else -1.0, 1.0) if share else (-inf, inf)
    return replace(judged, low=max(least, centre - half), high=min(most, centre + half), p=p)


def score_test(share: float, bound: float, clusters: int) -> float:
    """Two-sided p-value of a share lying on a bound; below 0.05 where the bound is outside Wilson's interval."""
    if not 0.0 < bound < 1.0:
        return float(share == bound)
    return erfc(abs(share - bound) / sqrt(2 * bound * (1 - bound) / clusters))


def combined_error(documents: float, clusters: int, seeds: float, count: int) -> tuple[float, float]:
    """Standard error of both samples together, and its degrees of freedom."""
    parts = [(documents**2, clusters - 1)] + ([(seeds**2, count - 1)] if count > 1 else [])
    variance = sum(part for part, _ in parts)
    spread = sum(part**2 / freedom for part, freedom in parts)
    return sqrt(variance), variance**2 / spread if spread else clusters - 1


def distance_to_bound(claim: Claim, gain: float) -> float:
    """How far a gain is from the nearest bound of the region of a claim."""
    return min(abs(gain - bound) for bound in claim.region)


def with_outcome(judged: Judged, p_holm: float | None) -> Judged:
    """Add the corrected p-value and what follows from it."""
    outcome: Outcome = "undecided"
    if p_holm is not None and p_holm < LEVEL:
        low, high = judged.claim.region
        outcome = "holds" if low < judged.gain < high else "reversed"
    return replace(judged, p_holm=p_holm, outcome=outcome)
