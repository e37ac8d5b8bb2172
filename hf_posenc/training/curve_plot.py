"""Plot of fine-tuning: held-out loss against optimiser steps, one line per context length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hf_posenc.core.plotting.figures import (
    COLOURS,
    MARKERS,
    figure,
    save_figure,
)

if TYPE_CHECKING:
    from hf_posenc.training.loss_curve import LossPoint

FAINT = "#8C8C8C"


def curve_plot(
    runs: Sequence[Sequence[LossPoint]], trained_length: int, path: Path, *, goal: float | None = None
) -> None:
    """Draw the held-out loss of one run, or of several that differ in their seed, against steps.

    Args:
        runs: one curve per seed; with several, lines are means and bands span minimum to maximum.
        trained_length: pre-training context length in tokens.
        path: of the plot; the suffix selects the format, such as ``.png`` or ``.svg``.
        goal: reference loss, nats/token: that of the unpatched model at its trained length.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    canvas, axes = figure(8.0, 4.6)
    rows = [(point.step, point.loss) for run in runs for point in run if point.loss is not None]
    axes.plot(*zip(*rows, strict=True), ".", color=FAINT, alpha=0.45, markersize=4, label="training sequences")
    lengths = sorted({length for point in runs[0] for length in point.held_out})
    for number, length in enumerate(lengths):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        draw_length(axes, runs, length, f"{length:,} ({length / trained_length:g}×)", color=colour, marker=marker)
    losses = [value for run in runs for point in run for value in point.held_out.values()]
    losses += [] if goal is None else [goal]
    if losses:  # the losses of single training sequences vary too much to set the scale
        margin = 0.15 * max(max(losses) - min(losses), 0.2)
        axes.set_ylim(min(losses) - margin, max(losses) + margin)
    if goal is not None:
        axes.axhline(goal, color="#555555", linestyle=(0, (4, 3)), linewidth=1.0, zorder=1, label="unpatched, at 1×")
    axes.set_xlabel("optimiser steps")
    axes.set_ylabel("cross-entropy loss (nats/token)")
    title = "Held-out loss of the same last tokens, by context length (tokens)"
    axes.set_title(title + (f", {len(runs)} seeds" if len(runs) > 1 else ""), loc="left", fontsize=11)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    save_figure(canvas, path)


def draw_length(axes: Any, runs: Sequence[Sequence[LossPoint]], length: int, label: str, **style: Any) -> None:
    """Draw the mean over runs as a line, and their range as a band."""
    steps = [point.step for point in runs[0] if length in point.held_out]
    values = [
        [p.held_out[length] for run in runs for p in run if p.step == step and length in p.held_out] for step in steps
    ]
    axes.plot(steps, list(map(fmean, values)), label=label, linewidth=1.8, markersize=5, zorder=3, **style)
    if len(runs) > 1:
        axes.fill_between(steps, list(map(min, values)), list(map(max, values)), color=style["color"], alpha=0.15)
