"""Turn the comparison of one model into the lines of a leaderboard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hf_posenc.eval.results.bootstrap import mean_bounds
from hf_posenc.eval.results.comparison import Comparison, interval, rows_by_cell
from hf_posenc.eval.results.costs import costs_by_scheme
from hf_posenc.eval.results.documents import DocumentScore
from hf_posenc.eval.results.paired import paired
from hf_posenc.eval.results.record import Record
from hf_posenc.eval.results.rows import Row
from hf_posenc.insight.leaderboard.choose import kind_of
from hf_posenc.insight.leaderboard.effective import effectives
from hf_posenc.insight.leaderboard.line import Behind, LengthScore, Line, PairedCost, Rank
from hf_posenc.insight.leaderboard.ranks import ranks

Command = Callable[[str, str, int], str]
"""Scheme, task and length to the command that measures their cell again."""


def lines_of(
    comparison: Comparison, costs: Mapping[str, tuple[PairedCost, ...]], command: Command, *, seed: int = 0
) -> list[Line]:
    """The lines of one model, ordered by task and then by rank.

    Args:
        comparison: of the schemes on the model.
        costs: by label.
        command: see `Command`.
        seed: of the bootstrap.
    """
    effective = effectives(comparison, seed=seed)
    caches = {one.label: one.cache_per_token for one in costs_by_scheme(comparison.records, comparison.costs)}
    found = []
    for task in comparison.about["tasks"]:
        metric = next(iter(comparison.metrics(task)), "")
        places = ranks_of(comparison, task, metric)
        lines = [
            Line(
                comparison.about["model"], entry["label"], kind_of(entry["scheme"]), use_of(entry), task, metric,
                tuple(scores_of(comparison, entry["label"], task, metric, command, seed)),
                effective.get((entry["label"], task)), places.get(entry["label"]), None,
                costs.get(entry["label"], ()), caches.get(entry["label"]),
            )
            for entry in comparison.about["schemes"]
        ]  # fmt: skip
        found += with_distances(comparison, sorted(lines, key=place))
    return found


def with_distances(comparison: Comparison, lines: Sequence[Line]) -> list[Line]:
    """The lines of one table with their paired differences from the first."""
    first = lines[0]
    if first.rank is None:
        return list(lines)
    length = first.longest.length
    base = documents_at(comparison, first.scheme, first.task, first.metric, length)
    found = [first]
    for line in lines[1:]:
        own = documents_at(comparison, line.scheme, line.task, line.metric, length)
        difference = paired(line.scheme, first.scheme, own, base) if own else None
        if difference is not None:
            line = replace(line, behind=Behind(first.scheme, difference.difference, difference.low, difference.high))
        found.append(line)
    return found


def use_of(entry: Mapping[str, object]) -> str:
    """What it takes to use an entry of a comparison."""
    if entry["scheme"] is None:
        return "unpatched"
    return "training" if entry["needs_training"] else "zero-shot"


def place(line: Line) -> tuple[float, float, float]:
    """Sort key of a line: its possible places, and its score."""
    value = line.longest.value
    if line.rank is None or value is None:
        return float("inf"), 0.0, 0.0
    return line.rank.first, line.rank.last, -value if line.more_is_better else value


def ranks_of(comparison: Comparison, task: str, metric: str) -> dict[str, Rank]:
    """Ranks at the longest length, by label."""
    longest = max(comparison.about["lengths"])
    scores = {label: documents_at(comparison, label, task, metric, longest) for label in comparison.labels}
    better = next((row.higher_is_better for row in comparison.rows if (row.task, row.metric) == (task, metric)), None)
    measured = {label: documents for label, documents in scores.items() if documents}
    return {} if better is None or len(measured) < 2 else ranks(measured, higher_is_better=better)


def documents_at(comparison: Comparison, label: str, task: str, metric: str, length: int) -> list[DocumentScore]:
    """Scores of documents over all depths."""
    wanted = (task, length, None, metric)
    return [score for score in comparison.documents[label] if score.row == wanted]


def scores_of(
    comparison: Comparison, label: str, task: str, metric: str, command: Command, seed: int
) -> Sequence[LengthScore]:
    """The scores of a line, shortest length first."""
    rows = rows_by_cell(comparison.rows, task, metric)
    records = {r.length: r for r in comparison.records if (r.scheme, r.task) == (label, task)}
    return [
        score_of(records[n], rows.get((label, n)), documents_at(comparison, label, task, metric, n), n,
                 command(label, task, n), seed)
        for n in comparison.about["lengths"] if n in records
    ]  # fmt: skip


def score_of(
    record: Record, row: Row | None, documents: Sequence[DocumentScore], length: int, command: str, seed: int
) -> LengthScore:
    """One score; without a value where its cell has none."""
    if row is None:
        return LengthScore(length, record.state, None, None, None, None, None, 0, record.reason, record.key, command)
    low, high = interval(row) or (None, None)
    found = mean_bounds([d.value for d in documents], [d.cluster for d in documents], seed=seed) if documents else None
    drawn: tuple[float | None, float | None] = found or (None, None)
    return LengthScore(length, record.state, row.value, low, high, *drawn, row.n, "", record.key, command)
