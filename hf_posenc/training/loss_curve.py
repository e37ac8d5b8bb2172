"""The loss curve of a run: training and held-out loss against steps, and its plot."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from hf_posenc.core.plotting import COLOURS, MARKERS, figure, plain, save_figure
from hf_posenc.core.student_t import mean_interval

MEASURED = re.compile(r"eval_(?P<length>[0-9]+)_(?P<kind>loss|windows)")
FAINT = "#8C8C8C"


@dataclass(frozen=True)
class LossPoint:
    """Losses after a step.

    Attributes:
        step: optimiser steps done; 0 is before training.
        loss: training loss, nats/token; None before the first step.
        held_out: held-out loss by length, nats/token; empty if it was not measured at this step.
        windows: held-out losses of all windows by length. Window n ends at the same token at every length.
    """

    step: int
    loss: float | None = None
    held_out: Mapping[int, float] = field(default_factory=dict)
    windows: Mapping[int, Sequence[float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        held_out = {str(length): loss for length, loss in self.held_out.items()}
        windows = {str(length): list(losses) for length, losses in self.windows.items()}
        values = {"step": self.step, "loss": self.loss, "held_out": held_out}
        return values | {"windows": windows} if windows else values

    def difference(self, length: int, against: int) -> tuple[float, float] | None:
        """Return the mean over windows of loss at ``length`` − loss at ``against``, and half of its 95 % interval.

        Adapting to a text lowers its loss at every length; this difference is what a longer context adds. None if the
        losses of windows are not known; half of the interval is NaN for a single window.
        """
        longer, shorter = self.windows.get(length), self.windows.get(against)
        if not longer or not shorter:
            return None
        return mean_interval([a - b for a, b in zip(longer, shorter, strict=True)])


def points(history: Sequence[Mapping[str, Any]]) -> list[LossPoint]:
    """Convert the log of `Trainer`, which has several entries per step, to one point per step.

    The losses of a step are ``loss``, ``eval_512_loss``, ``eval_512_windows``, …
    """
    steps: dict[int, dict[str, Any]] = defaultdict(dict)
    for entry in history:
        steps[entry["step"]] |= entry
    every = []
    for step, entry in sorted(steps.items()):
        measured: dict[str, dict[int, Any]] = {"loss": {}, "windows": {}}
        for name, value in entry.items():
            if (found := MEASURED.fullmatch(name)) is not None:
                measured[found["kind"]][int(found["length"])] = value
        held_out, windows = (dict(sorted(by_length.items())) for by_length in measured.values())
        every.append(LossPoint(step, entry.get("loss"), held_out, windows))
    return [point for point in every if point.loss is not None or point.held_out]


def curve_plot(runs: Sequence[Sequence[LossPoint]], trained_length: int, path: Path) -> None:
    """Draw the held-out loss of one run, or of several that differ in their seed, against steps.

    Args:
        runs: one curve per seed; with several, lines are means and bands span minimum to maximum.
        trained_length: pre-training context length in tokens.
        path: file of the plot; the suffix selects the format, such as ``.png`` or ``.svg``.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    canvas, axes = figure(8.0, 4.6)
    rows = [(point.step, point.loss) for run in runs for point in run if point.loss is not None]
    axes.plot(*zip(*rows, strict=True), ".", color=FAINT, alpha=0.45, markersize=4, label="training sequences")
    lengths = sorted({length for point in runs[0] for length in point.held_out})
    for number, length in enumerate(lengths):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        label = f"{length:,} ({length / trained_length:g}×)"
        steps = [point.step for point in runs[0] if length in point.held_out]
        measured = [point for run in runs for point in run if length in point.held_out]
        values = [[point.held_out[length] for point in measured if point.step == step] for step in steps]
        means = list(map(fmean, values))
        axes.plot(steps, means, label=label, linewidth=1.8, markersize=5, zorder=3, color=colour, marker=marker)
        if len(runs) > 1:
            axes.fill_between(steps, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.15)
    losses = [value for run in runs for point in run for value in point.held_out.values()]
    if losses:  # the losses of single training sequences vary too much to set the scale
        margin = 0.15 * max(max(losses) - min(losses), 0.2)
        axes.set_ylim(min(losses) - margin, max(losses) + margin)
    axes.set_xlabel("optimiser steps")
    axes.set_ylabel("cross-entropy loss (nats/token)")
    title = "Held-out loss of the same last tokens, by context length (tokens)"
    axes.set_title(title + (f", {len(runs)} seeds" if len(runs) > 1 else ""), loc="left", fontsize=11)
    plain(axes)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    save_figure(canvas, path)
