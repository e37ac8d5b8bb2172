"""What a search reports of an arm, and of a line of its held-out table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import stdev
from typing import Any

from hf_posenc.eval.results.documents import DocumentScore, standard_error
from hf_posenc.eval.results.paired import Difference, holm, judged, paired
from hf_posenc.insight.search.arms import hides_keys
from hf_posenc.insight.search.halving import Halving
from hf_posenc.schemes.entry import UNPATCHED, Entry


@dataclass(frozen=True)
class Trial:
    """An arm of the search, as far as it came.

    Attributes:
        label: scheme and options.
        scheme: name or composition.
        options: of the scheme.
        default: whether it has no options but its scheme's own.
        hides_keys: whether it hides or evicts keys, so that older text is lost.
        state: ``"measured"``, ``"refused"``, ``"same"`` as another arm, or ``"not reached"`` in the time.
        note: why it was refused, or the arm it is the same as.
        rung: the last one it was measured on, from 0.
        windows: of the text that is chosen on.
        loss: mean over them, nats/token; None where it was not measured.
        stderr: standard error of that mean.
        seconds: of its cells.
    """

    label: str
    scheme: str
    options: dict[str, Any]
    default: bool
    hides_keys: bool
    state: str
    note: str = ""
    rung: int | None = None
    windows: int = 0
    loss: float | None = None
    stderr: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class HeldOut:
    """A line of the held-out table.

    Attributes:
        label: of an arm with default options, of the chosen one, or of the unpatched model.
        loss: mean over the held-out windows, nats/token; None where it could not be measured.
        stderr: standard error of that mean.
        windows: their number.
        difference: the chosen arm minus this one, on the same windows.
        note: why there is no loss.
    """

    label: str
    loss: float | None = None
    stderr: float | None = None
    windows: int = 0
    difference: Difference | None = None
    note: str = ""


def trials_of(
    arms: Sequence[Entry], halving: Halving, reasons: Mapping[str, str], seconds: Mapping[str, float]
) -> tuple[Trial, ...]:
    """Every arm once: those that came farther first, then by loss.

    Args:
        arms: of the plan, and the families that were refused.
        halving: what was measured.
        reasons: why arms were refused, by label.
        seconds: of their cells, by label.
    """
    every = {arm.label: arm for arm in arms}.values()
    trials = [replace(trial_of(arm, halving, reasons), seconds=seconds.get(arm.label, 0.0)) for arm in every]
    return tuple(sorted(trials, key=lambda one: (one.loss is None, -(one.rung or 0), one.loss or 0.0)))


def trial_of(arm: Entry, halving: Halving, reasons: Mapping[str, str]) -> Trial:
    """An arm, as far as it came."""
    label, scheme = arm.label, arm.scheme or ""
    trial = Trial(label, scheme, arm.options, not arm.options, hides_keys(scheme), "not reached")
    if label in reasons and label not in halving.survivors[-1]:  # on a rung that no arm finished, none was refused
        return replace(trial, state="refused", note=reasons[label])
    if label not in halving.losses:
        return trial
    values = list(halving.losses[label].values())
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else None
    earlier = halving.duplicates.get(label, "")
    return replace(
        trial, state="same" if earlier else "measured", note=earlier, rung=halving.rung_of(label), windows=len(values),
        loss=halving.score(label), stderr=error,
    )  # fmt: skip


def held_out_lines(
    chosen: str, scores: Mapping[str, Sequence[DocumentScore] | None], reasons: Mapping[str, str]
) -> list[HeldOut]:
    """Lines of the held-out table, by loss: the chosen arm minus each other, corrected together (Holm).

    Args:
        chosen: label.
        scores: of the held-out windows, by label; None where there are none.
        reasons: for these.
    """
    ours = scores[chosen] or []
    found = {
        label: paired(chosen, label, ours, theirs) for label, theirs in scores.items() if theirs and label != chosen
    }
    known = {label: difference for label, difference in found.items() if difference is not None}
    corrected = dict(zip(known, holm([difference.p for difference in known.values()]), strict=True))
    lines = []
    for label, some in scores.items():
        if not some:
            lines.append(HeldOut(label, note=reasons.get(label) or reasons[UNPATCHED]))  # that at its trained length
            continue
        values = [score.value for score in some]
        stderr, _ = standard_error(values, [score.cluster for score in some])
        line = HeldOut(label, sum(values) / len(values), stderr, len(values))
        if label in known:
            line = replace(line, difference=judged(known[label], corrected[label], False))
        lines.append(line)
    return sorted(lines, key=lambda line: (line.loss is None, line.loss or 0.0))
