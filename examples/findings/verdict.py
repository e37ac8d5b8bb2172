"""Judge a published finding by paired differences on the same documents, with errors over documents and seeds.

    d_is   gain of document i under seed s, both sides on the same document
    SE²    = SE²(documents) + SE²(seeds)          of the means over seeds, and of the means over documents
    t      = distance of the mean gain from the nearest bound of the claim's region / SE

If p < 0.05 after Holm's correction over the claims of the finding, a claim *holds* if the mean gain lies in its region,
and *is reversed* if it lies outside. Otherwise it is undecided. A finding is *reproduced* if all claims hold, and *not
reproduced* if one is reversed. Otherwise, or if the model lacks an ability that the finding needs, it is *not decidable
at this size*.

Documents come in clusters (Cameron, Miller 2015). The variances of documents and seeds add (Owen 2007), with degrees of
freedom after Welch and Satterthwaite. With a single seed, the result is about one model.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from math import inf, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats


class Score(NamedTuple):
    """Score of one document in one metric; documents that are not independent share a cluster."""

    document: str
    cluster: str
    value: float


Scores = Mapping[str, Sequence[Score]]  # by metric
Cells = Mapping[tuple[str, float, int], Scores]  # by variant, point and seed


class Metric(NamedTuple):
    """A metric of documents; its unit is ``share`` for scores between 0 and 1."""

    name: str
    unit: str = "nats/token"
    higher_is_better: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim: the gain of ``first`` over ``second`` at a point lies between ``low`` and ``high``."""

    first: str
    second: str | None
    at: float
    low: float
    high: float = inf
    metric: str = ""  # by default the first metric of the finding
    second_at: float | None = None  # point of ``second``, if it differs


def better(first: str, second: str, at: float, margin: float = 0.0, **more: Any) -> Claim:
    """Claim that ``first`` is better by more than a margin; a negative margin allows it to be worse by that much."""
    return Claim(first, second, at, margin, **more)


def same(first: str, second: str, at: float, within: float) -> Claim:
    """Claim that both are equally good, up to a margin that counts as no difference."""
    return Claim(first, second, at, -within, within)


def able(variant: str, at: float, least: float, metric: str = "") -> Claim:
    """Claim that the mean score exceeds ``least``: an ability that a model needs before a comparison means anything."""
    return Claim(variant, None, at, least, metric=metric)


@dataclass(frozen=True)
class Finding:
    """A published finding, the measurements that test it, and the claims that decide on it.

    Attributes:
        claim, source: the finding in a sentence, and where it was published.
        against: results that would count against the finding.
        limits: differences from the published experiments, and what the models used here cannot show.
        variants: settings of what is compared, by name.
        points: points of measurement, such as multiples of the trained length.
        metrics: metrics of documents; the first is the default of claims.
        claims: claims that decide on the finding.
        measure: ``measure(settings, points, seed, **options)`` yields the scores of one variant at each point.
        full, quick: options of ``measure`` for the full and the quick budget; also ``seeds``, the number of trainings.
        needs: abilities without which the claims mean nothing.
        axis: format of a point.
    """

    claim: str
    source: str
    against: str
    limits: str
    variants: Mapping[str, Any]
    points: Sequence[float]
    metrics: Sequence[Metric]
    claims: Sequence[Claim]
    measure: Callable[..., Iterator[tuple[float, Scores]]]
    full: Mapping[str, Any]
    quick: Mapping[str, Any]
    needs: Sequence[Claim] = field(default=())
    axis: str = "{:g}×"


def main(finding: Finding) -> None:
    """Run the command of a finding's script: measure, judge, print, and write a JSON file with ``--out``."""
    parser = argparse.ArgumentParser(description=finding.claim, epilog=finding.source)
    parser.add_argument("--quick", action="store_true", help="a smaller budget, too small for a verdict")
    parser.add_argument("--out", type=Path, help="JSON file for `docs/make_findings.py`")
    arguments, started = parser.parse_args(), time.process_time()
    cells = measured(finding, **(finding.full | finding.quick if arguments.quick else finding.full))
    needed, judged = (judge(claims, finding.metrics, cells) for claims in (finding.needs, finding.claims))
    for one in (*needed, *judged):
        interval = "" if one.low is None else f"{one.low:+.3f} … {one.high:+.3f}"
        print(f"{in_words(one.claim, finding.axis):<64} {one.gain:+.3f}  {interval:<20} {one.outcome}")
    print(f"Verdict: {verdict_on(judged, needed)}")
    if arguments.out is not None:
        claims = [{"says": in_words(one.claim, finding.axis), **asdict(one)} for one in judged]
        about = {"name": Path(sys.argv[0]).stem, "verdict": verdict_on(judged, needed), "claims": claims}
        versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
        about |= {"quick": arguments.quick, "cpu_seconds": time.process_time() - started, "versions": versions}
        arguments.out.write_text(json.dumps(about, indent=1, default=str), encoding="utf-8")


def measured(finding: Finding, seeds: int = 1, **options: Any) -> Cells:
    """The scores of all variants at all points, under every seed."""
    cells: dict[tuple[str, float, int], Scores] = {}
    for seed in range(seeds):
        for variant, settings in finding.variants.items():
            print(f"{variant}, seed {seed} …", file=sys.stderr)
            for at, scores in finding.measure(settings, finding.points, seed, **options):
                cells[variant, at, seed] = scores
    return cells


@dataclass(frozen=True)
class Judged:
    """A claim with its mean gain (or mean score), 95 % interval, p-values and outcome."""

    claim: Claim
    gain: float
    low: float | None
    high: float | None
    documents: int
    p: float | None
    p_holm: float | None = None
    outcome: str = "undecided"


def judge(claims: Sequence[Claim], metrics: Sequence[Metric], cells: Cells) -> list[Judged]:
    """Judge all claims of a finding together, with corrected p-values."""
    alone = [judged_alone(claim, next(m for m in metrics if claim.metric in ("", m.name)), cells) for claim in claims]
    p_values = sorted(one.p for one in alone if one.p is not None)
    judged, corrected = [], dict[float, float]()
    for rank, p in enumerate(p_values):  # Holm 1979
        corrected.setdefault(p, max([min(1.0, (len(p_values) - rank) * p), *corrected.values()]))
    for one in alone:
        p, claim = None if one.p is None else corrected[one.p], one.claim
        outcome = (
            "undecided" if p is None or p >= 0.05 else "holds" if claim.low < one.gain < claim.high else "reversed"
        )
        judged.append(replace(one, p_holm=p, outcome=outcome))
    return judged


def verdict_on(judged: Sequence[Judged], needed: Sequence[Judged] = ()) -> str:
    """The verdict that follows from the outcomes of all claims and of the abilities that they need."""
    outcomes = {one.outcome for one in judged}
    if any(one.outcome != "holds" for one in needed):
        return "not decidable at this size"
    if "reversed" in outcomes:
        return "not reproduced"
    return "reproduced" if outcomes == {"holds"} else "not decidable at this size"


def judged_alone(claim: Claim, metric: Metric, cells: Cells) -> Judged:
    """Judge one claim, without correction for the others; an interval needs three clusters of documents."""
    seeds = sorted({seed for *_, seed in cells})
    other = claim.at if claim.second_at is None else claim.second_at
    slots = [(claim.first, claim.at), *([] if claim.second is None else [(claim.second, other)])]
    sides = [[{s.document: s for s in cells[(*slot, seed)][metric.name]} for slot in slots] for seed in seeds]
    names = sorted(set.intersection(*(set(side) for of_seed in sides for side in of_seed)))
    if not names:
        raise LookupError(f"{slots} have no document in common. Measure them on the same documents.")
    values = np.array([[[side[name].value for name in names] for side in of_seed] for of_seed in sides])
    gains = (values[:, 0] - values[:, 1:].sum(1)) * (1 if metric.higher_is_better else -1)  # [seed, document]
    gain, share, paired = float(gains.mean()), metric.unit == "share", claim.second is not None
    clusters = {name: sides[0][0][name].cluster for name in names}
    error, count = clustered_error(dict(zip(names, gains.mean(0), strict=True)), clusters)
    if count < 3:
        return Judged(claim, gain, None, None, len(names), None)
    if share and not paired and error < 1e-12 and gain in (0.0, 1.0):
        low, high = stats.binomtest(round(gain * count), count).proportion_ci(method="wilson")
        z = abs(gain - claim.low) / sqrt(claim.low * (1 - claim.low) / count)
        return Judged(claim, gain, low, high, len(names), 2 * float(stats.norm.sf(z)))
    centre = gain
    if share and paired and (error < 1e-12 or set(np.unique(values)) <= {0.0, 1.0}):
        centre, error = agresti_min(gain, error, count)
    parts = [(error**2, count - 1)]
    if len(seeds) > 1:
        parts.append((float(gains.mean(1).var(ddof=1)) / len(seeds), len(seeds) - 1))
    variance = sum(part for part, _ in parts)
    distance = min(abs(centre - claim.low), abs(centre - claim.high))
    if variance < 1e-24:  # all documents differ by the same amount: significant only if they do not differ at all
        significant = abs(gain) < 1e-5 < distance
        return Judged(claim, gain, None, None, len(names), 0.0 if significant else 1.0)
    freedom = variance**2 / sum(part**2 / each for part, each in parts)
    half = float(stats.t.ppf(0.975, freedom)) * sqrt(variance)
    least, most = (-1.0 if paired else 0.0, 1.0) if share else (-inf, inf)
    # A distance below 1e-5 is the rounding of float32 arithmetic in another order.
    p = 1.0 if distance < 1e-5 else 2 * float(stats.t.sf(distance / sqrt(variance), freedom))
    return Judged(claim, gain, max(least, centre - half), min(most, centre + half), len(names), p)


def clustered_error(values: Mapping[str, float], clusters: Mapping[str, str]) -> tuple[float, int]:
    """Standard error of the mean over clustered documents, and the number of clusters."""
    mean, sums = float(np.mean([*values.values()])), dict[str, float]()
    for name, value in values.items():
        sums[clusters[name]] = sums.get(clusters[name], 0.0) + value - mean
    count = len(sums)
    return sqrt(count / max(count - 1, 1) * sum(part**2 for part in sums.values())) / len(values), count


def agresti_min(mean: float, error: float, count: int) -> tuple[float, float]:
    """Centre and standard error of the difference of two shares, which is never 0 (Agresti, Min 2005)."""
    squares, centre = count * ((count - 1) * error**2 + mean**2), count * mean / (count + 2)
    return centre, sqrt(((squares + 1) / (count + 2) - centre**2) / (count + 2))


def in_words(claim: Claim, axis: str) -> str:
    """Write a claim as text: ``yarn better than pi at 4× by more than 0.1``."""
    first, second, at = claim.first, claim.second, axis.format(claim.at)
    if second is None:
        return f"{claim.metric or 'score'} of {first} at {at} more than {claim.low:g}"
    where = f" at {at}"
    if claim.second_at is not None:
        first, second, where = f"{first}{where}", f"{second} at {axis.format(claim.second_at)}", ""
    of_metric = f", {claim.metric}" if claim.metric else ""
    if claim.high != inf:
        return f"{first} equal to {second}{where} within {claim.high:g}{of_metric}"
    if claim.low < 0:
        return f"{first} at most {-claim.low:g} worse than {second}{where}{of_metric}"
    return f"{first} better than {second}{where}" + (f" by more than {claim.low:g}" if claim.low else "") + of_metric
