"""The verdict of a comparison in one sentence: what is surely better or worse at the longest length."""

from __future__ import annotations

from collections.abc import Sequence

from hf_posenc.eval.report.phrases import metric_name
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.effective_length import shown_metrics
from hf_posenc.eval.results.paired import Difference, Verdict

SURE: tuple[Verdict, ...] = ("better", "worse", "different")


def verdict(comparison: Comparison) -> str:
    """Return the sentence, or one for each model; empty where nothing is compared with a baseline.

    The baseline is the chosen reference; else, of each model, its own first line that is unpatched. Each task speaks by
    its first metric that is shown, and p-values are those of the marks.
    """
    against = comparison.about.get("against")
    if against is not None:
        return verdict_from(comparison, against, comparison.labels)
    lines: dict[str, list[str]] = {}
    for label in comparison.labels:
        if (baseline := comparison.baseline_of(label)) is not None:
            lines.setdefault(baseline, []).append(label)
    return " ".join(filter(None, (verdict_from(comparison, *one) for one in lines.items())))


def verdict_from(comparison: Comparison, baseline: str, labels: Sequence[str]) -> str:
    """The sentence on the lines ``labels`` against ``baseline``; empty where none of them is another line."""
    length = max(comparison.about["lengths"])
    differences = [
        one for one in comparison.differences_from(baseline) if one.length == length and one.scheme in labels
    ]
    parts = []
    for task in comparison.tasks():
        metric = next(iter(shown_metrics(comparison, task)), None)
        if found := [one for one in differences if (one.task, one.metric) == (task, metric)]:
            parts.append(f"{task} ({metric_name(found[0].metric)}): {judged(found)}")
    return f"Against {baseline} at {length:,} tokens: {'; '.join(parts)}." if parts else ""


def judged(found: Sequence[Difference]) -> str:
    """Which lines surely differ, and how; the others are undecided."""
    parts = []
    for kind in SURE:
        if labels := [one.scheme for one in found if one.verdict == kind]:
            parts.append(f"{', '.join(labels)} surely {kind}")
    return " and ".join(parts) or "nothing is sure"
