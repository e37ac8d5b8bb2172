"""Heat maps of a comparison for its HTML page: accuracy, or loss of the answer, by length and depth.

The palette is cividis, perceptually uniform and the same to colour-blind readers (Nuñez et al. 2018, arXiv:1712.01662).
Bright is better in every map: of losses the palette runs from the highest of all entries, dark, to the lowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_posenc.core.plotting.figures import figure, length_names
from hf_posenc.core.plotting.svg import NEUTRAL, SETTINGS, svg_of
from hf_posenc.eval.report.phrases import UNITS, axis_label, is_share, to_units
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.rows import Row

MOST_NUMBERS = 120
"""Cells in the heat maps of a task that are annotated with numbers; with more, colour only."""


@dataclass(frozen=True)
class Scale:
    """The colour scale that all maps of a metric share: its worst and best value, in units of the axis."""

    metric: str
    worst: float
    best: float

    def brightness(self, value: float) -> float:
        """A value's place on the palette: 0 is the worst, 1 the best."""
        return (value - self.worst) / (self.best - self.worst) if self.best != self.worst else 1.0

    def label(self, value: float) -> str:
        """A value with its unit: ``75 %``, ``2.31 nats/token``."""
        unit = "%" if is_share(self.metric) else UNITS.get(self.metric, "")
        return f"{self.written(value)} {unit}".rstrip()

    def written(self, value: float) -> str:
        """A value as cells have it."""
        return f"{value:.0f}" if is_share(self.metric) else f"{value:.2f}"


def scale_of(comparison: Comparison, task: str, metric: str) -> Scale:
    """Shares run from 0 to 100 %, losses from the highest to the lowest of all entries."""
    if is_share(metric):
        return Scale(metric, 0.0, 100.0)
    values = [row.value for row in deep_rows(comparison, task, metric)]
    return Scale(metric, max(values), min(values))


def deep_rows(comparison: Comparison, task: str, metric: str) -> list[Row]:
    """The rows of one metric that belong to a depth."""
    return [r for r in comparison.rows if (r.task, r.metric) == (task, metric) and r.depth is not None]


def heat_maps(comparison: Comparison, task: str, metric: str, scale: Scale) -> dict[str, str]:
    """Plot a metric by length (x) and depth (y), one SVG heat map per entry."""
    rows = {(r.scheme, r.length, r.depth): r for r in deep_rows(comparison, task, metric)}
    lengths = sorted({row.length for row in rows.values() if row.length is not None})
    depths = sorted({row.depth for row in rows.values() if row.depth is not None})
    labels = [label for label in comparison.labels if any(cell[0] == label for cell in rows)]
    written = len(labels) * len(lengths) * len(depths) <= MOST_NUMBERS
    maps = {}
    for label in labels:
        grid = [[value_of(rows.get((label, length, depth))) for length in lengths] for depth in depths]
        maps[label] = heat_map(grid, lengths, depths, scale, described(task, label, grid, scale), written)
    return maps


def described(task: str, label: str, grid: Sequence[Sequence[float]], scale: Scale) -> str:
    """What a map shows, for readers who cannot see it."""
    found = [value for line in grid for value in line if value == value]
    lowest, highest = (scale.label(value) for value in (min(found), max(found)))
    return f"{task} of {label}: {axis_label(scale.metric)} by length and depth, from {lowest} to {highest}"


def value_of(row: Row | None) -> float:
    """Value in units of the axis; NaN where there is none."""
    return float("nan") if row is None else to_units(row.metric, row.value)


def heat_map(
    grid: Sequence[Sequence[float]],
    lengths: Sequence[Any],
    depths: Sequence[Any],
    scale: Scale,
    described: str,
    written: bool,
) -> str:
    """Plot one heat map as SVG; ``written`` annotates the cells with their numbers."""
    from matplotlib import rc_context

    with rc_context(SETTINGS):
        canvas, axes = figure(1.0 + 0.4 * max(5, len(lengths)), 0.75 + 0.27 * max(3, len(depths)))
        bright = [[scale.brightness(value) for value in line] for line in grid]
        axes.imshow(bright, cmap="cividis", vmin=0, vmax=1, aspect="auto", interpolation="none")
        for y, line in enumerate(grid):
            for x, value in enumerate(line):
                missing = value != value
                colour = NEUTRAL if missing else "#ffffff" if bright[y][x] < 0.55 else "#000000"
                if missing or written:
                    shown = "–" if missing else scale.written(value)
                    axes.text(x, y, shown, ha="center", va="center", color=colour, fontsize=9)
        axes.set_xticks(range(len(lengths)), length_names(lengths))
        axes.set_yticks(range(len(depths)), [f"{100 * depth:g}" for depth in depths])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("length (tokens)")
        axes.set_ylabel("depth (%)")
        return svg_of(canvas, described)
