"""Rank the lines of a comparison: on each task at the longest length, with an interval and a cost.

    first = 1 + lines that are significantly better        last = lines − lines that are significantly worse

Every pair of lines is compared document by document, and all pairs of a table are corrected together by Holm's method.
All rank intervals of a table are therefore right at the same time with 95 % confidence: Mogstad, Romano, Shaikh,
Wilhelm 2024, "Inference for Ranks with Applications to Mobility across Neighbourhoods and Academic Achievement across
Countries", Review of Economic Studies 91(1), section 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from math import inf
from typing import Any

from hf_posenc.eval.results.comparison import Comparison, interval, rows_by_cell
from hf_posenc.eval.results.effective_length import EffectiveLength, effective_lengths
from hf_posenc.eval.results.paired import LEVEL, Difference, holm, paired
from hf_posenc.eval.results.rows import DocumentScore
from hf_posenc.eval.results.store import costs_of


@dataclass(frozen=True)
class Ranked:
    """A line of a comparison on one task at the longest length.

    Attributes:
        value, low, high: score and its 95 % interval; None if there is none.
        first, last: best and worst possible place; None for a line without a score.
        of: number of lines that are ranked.
        behind: difference from the first line over the same documents; None for the first line, or without a score.
        effective: effective context length; None if the metric has no threshold.
        time: time of the cell over that of the unpatched line; None without such a line.
        cache_per_token: bytes of the KV cache per token.
    """

    scheme: str
    task: str
    metric: str
    length: int
    value: float | None
    low: float | None
    high: float | None
    first: int | None
    last: int | None
    of: int
    behind: Difference | None
    effective: EffectiveLength | None
    time: float | None
    cache_per_token: float | None

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON, without the time, which differs from run to run."""
        values = {name: value for name, value in asdict(self).items() if name != "time"}
        if (behind := self.behind) is not None:
            values["behind"] = {"value": behind.difference, "low": behind.low, "high": behind.high}
        if (effective := self.effective) is not None:
            values["effective"] = {"length": effective.length, "low": effective.low, "high": effective.high}
        return values


def rankings(comparison: Comparison) -> dict[str, list[Ranked]]:
    """Ranked lines of each task that was measured length by length, best line first; empty without ``rank``."""
    if not comparison.about.get("rank"):
        return {}
    effective = {(one.scheme, one.task, one.metric): one for one in effective_lengths(comparison)}
    swept = [task for task in comparison.tasks() if any(r.task == task and r.length for r in comparison.rows)]
    return {task: ranking(comparison, task, comparison.metrics(task)[0], effective) for task in swept}


def ranking(
    comparison: Comparison, task: str, metric: str, effective: Mapping[tuple[str, str, str], EffectiveLength]
) -> list[Ranked]:
    """Ranked lines of one task, best line first."""
    length = max(comparison.about["lengths"])
    rows = rows_by_cell(comparison.rows, task, metric)
    better = next((row.higher_is_better for row in rows.values()), None)
    scores = {label: comparison.documents_of(label, task, metric, length) for label in comparison.labels}
    measured = {label: of_line for label, of_line in scores.items() if of_line}
    places = {} if better is None or len(measured) < 2 else ranks(measured, higher_is_better=better)
    lines = []
    for label in comparison.labels:
        row = rows.get((label, length))
        low, high = (None, None) if row is None else interval(row) or (None, None)
        first, last = places.get(label, (None, None))
        line = Ranked(
            label, task, metric, length, value=None if row is None else row.value, low=low, high=high,
            first=first, last=last, of=len(measured), behind=None, effective=effective.get((label, task, metric)),
            time=time_ratio(comparison, label, task, length),
            cache_per_token=costs_of(comparison.done(label)).cache_per_token,
        )  # fmt: skip
        lines.append(line)

    def place(line: Ranked) -> tuple[float, float, float]:
        if line.first is None or line.last is None or line.value is None:
            return inf, 0.0, 0.0
        return line.first, line.last, -line.value if better else line.value

    top, *others = sorted(lines, key=place)
    base = scores[top.scheme] if top.first is not None else []
    behind = [paired(line.scheme, top.scheme, scores[line.scheme], base) for line in others]
    return [top, *(replace(line, behind=one) for line, one in zip(others, behind, strict=True))]


def ranks(scores: Mapping[str, Sequence[DocumentScore]], *, higher_is_better: bool) -> dict[str, tuple[int, int]]:
    """Best and worst possible place of each line, from the scores of its documents."""
    pairs = [(a, b, paired(a, b, scores[a], scores[b])) for a, b in combinations(scores, 2)]
    corrected = holm([None if difference is None else difference.p for _, _, difference in pairs])
    better: Counter[str] = Counter()
    worse: Counter[str] = Counter()
    for (a, b, difference), p in zip(pairs, corrected, strict=True):
        if difference is None or p is None or p >= LEVEL:
            continue
        winner, loser = (a, b) if (difference.difference > 0) == higher_is_better else (b, a)
        better[loser] += 1
        worse[winner] += 1
    return {label: (1 + better[label], len(scores) - worse[label]) for label in scores}


def time_ratio(comparison: Comparison, label: str, task: str, length: int) -> float | None:
    """Time of a finished cell over that of the unpatched line of the same model; None if either is missing."""
    seconds = {
        record.scheme: record.seconds
        for record in comparison.with_state("done")
        if (record.task, record.length) == (task, length) and record.seconds > 0
    }
    own, base = seconds.get(label), seconds.get(comparison.baseline_of(label) or "")
    return None if own is None or base is None else own / base


def results_of(comparison: Comparison) -> dict[str, Any]:
    """Content of ``results.json``: cells, rows, differences, effective context lengths, and ranks if asked for."""
    results = comparison.to_dict() | {"effective": list(map(asdict, effective_lengths(comparison)))}
    ranks = [line.to_dict() for lines in rankings(comparison).values() for line in lines]
    return results | {"ranks": ranks} if ranks else results
