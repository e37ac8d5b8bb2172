"""Measure one model of a leaderboard: compare its schemes, time them, and make its lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_posenc.core.evaluation_mode import evaluation_mode
from hf_posenc.core.progress import ProgressCallback
from hf_posenc.eval import MeasuredModel, compare
from hf_posenc.eval.comparison.progress import part_of
from hf_posenc.eval.comparison.run import STORE
from hf_posenc.eval.report.remarks import method, remarks
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.store import Store
from hf_posenc.eval.texts.measured_text import MeasuredText
from hf_posenc.insight.leaderboard.choose import Chosen, zero_shot_schemes
from hf_posenc.insight.leaderboard.commands import Settings, loading_options
from hf_posenc.insight.leaderboard.line import Line
from hf_posenc.insight.leaderboard.lines import lines_of
from hf_posenc.insight.leaderboard.model import Measurable, loaded
from hf_posenc.insight.leaderboard.paired_costs import Found, Timing, paired_costs
from hf_posenc.schemes.entry import UNPATCHED, Entry

MULTIPLES = (1, 2, 4)
"""Default lengths, as multiples of the trained length of each model."""
SCORES, COSTS = 0.8, 0.2
"""Shares of the progress of a model."""


@dataclass(frozen=True)
class LeaderboardSettings:
    """What all models of a leaderboard are measured with.

    Attributes:
        schemes: as given; None for those that make sense on each model.
        lengths: tokens; empty for `MULTIPLES` of each model's trained length.
        tasks: names; empty for those of the model's kind.
        settings: of the cells.
        text: read already; None for the default text.
        rounds, threads: of the paired costs.
    """

    schemes: list[Entry] | None
    lengths: tuple[int, ...]
    tasks: tuple[str, ...]
    settings: Settings
    text: MeasuredText | None
    rounds: int
    threads: int


BELOW_GATE = "the tables give its shares no effective length"


def with_baseline(entries: Sequence[Entry]) -> list[Entry]:
    """The entries with the unpatched model, which costs and thresholds are relative to, in front of them."""
    return [Entry(UNPATCHED, None), *(entry for entry in entries if entry.scheme is not None)]


def of_model(
    model: MeasuredModel, request: LeaderboardSettings, folder: Path, progress: ProgressCallback
) -> tuple[dict[str, Any], list[Line]]:
    """Measure one model: what is said of it, and its lines."""
    settings = request.settings
    progress(0.0, "loading the model")
    trained, lengths, chosen = chosen_for(model, request)
    longest = max(lengths)
    comparison = compare(
        model, with_baseline(chosen.entries), out=folder, lengths=lengths, tasks=list(request.tasks) or None,
        samples=settings.samples, scored=settings.scored, keys=settings.keys, depths=settings.depths,
        text=request.text, seed=settings.seed, factor_per_length=settings.factor_per_length, longest=longest,
        progress=part_of(progress, 0.0, SCORES),
    )  # fmt: skip
    costs = costs_of(loaded(model), comparison, request, folder, part_of(progress, SCORES, COSTS))
    shown = model.shown_name

    def command(scheme: str, task: str, length: int) -> str:
        return settings.cell_command(model, scheme, task, length, longest)

    about = {
        "name": shown, "loading": loading_options(model), "trained_length": trained, "lengths": lengths,
        "tasks": comparison.about["tasks"],
        "digests": comparison.about["digests"], "left_out": chosen.left_out, "remarks": remarks(comparison, BELOW_GATE),
        "method": method(comparison.about),
    }  # fmt: skip
    return about, lines_of(comparison, costs, command, seed=settings.seed)


def chosen_for(model: MeasuredModel, request: LeaderboardSettings) -> tuple[int, list[int], Chosen]:
    """Trained length, lengths and schemes of a model, which is loaded for it and not kept beside the one measured."""
    ready = loaded(model)
    lengths = list(request.lengths) or [ready.trained_length * multiple for multiple in MULTIPLES]
    chosen = Chosen(request.schemes) if request.schemes else zero_shot_schemes(ready.model, max(lengths))
    return ready.trained_length, lengths, chosen


def costs_of(
    ready: Measurable, comparison: Comparison, request: LeaderboardSettings, folder: Path, progress: ProgressCallback
) -> Found:
    """Paired costs of all schemes that were measured at the longest length, by label."""
    longest = max(comparison.about["lengths"])
    timing = Timing(
        longest, max(1.0, longest / ready.trained_length), ready.cases, request.rounds, request.threads, ready.device
    )
    done = {record.scheme for record in comparison.with_state("done") if record.length in (longest, None)}
    entries = [fitted(entry, longest) for entry in comparison.about["schemes"] if entry["label"] in done]
    with Store(folder / STORE) as store, evaluation_mode(ready.model):
        digest = comparison.about["digests"]["model"]
        return paired_costs(ready.model, [e for e in entries if e.scheme], store, digest, timing, progress)


def fitted(entry: Mapping[str, Any], longest: int) -> Entry:
    """An entry of a comparison with the options that were chosen for the longest length."""
    own = Entry(entry["label"], entry["scheme"], dict(entry["options"]))
    return replace(own, options={**own.options, **entry["chosen"].get(str(longest), {})})
