"""Plots of a comparison for its HTML page: a metric against length.

Each scheme has a panel on shared axes, with its 95 % confidence band, and the unpatched model behind it in grey. The
palette of Okabe and Ito is colour-blind safe and visible on white and black.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_posenc.core.plotting import COLOURS, MARKERS, NEUTRAL, SETTINGS, length_ticks, panels, svg_of
from hf_posenc.eval.report.phrases import axis_label, format_value, is_share, to_units
from hf_posenc.eval.results.comparison import Comparison, interval, rows_by_cell
from hf_posenc.eval.results.rows import Row

Rows = Mapping[tuple[str, int | None], Row]
HUES = COLOURS[1:7]
COLUMNS = 2  # of panels; readable at the width of a phone


def curves(comparison: Comparison, task: str, metric: str) -> str:
    """Plot a metric against length as SVG, see `curves_figure`."""
    return svg_of(*curves_figure(comparison, task, metric))


def curves_figure(comparison: Comparison, task: str, metric: str) -> tuple[Any, str]:
    """Draw a metric against length, a panel for each scheme; figure and description."""
    rows = rows_by_cell(comparison.rows, task, metric)
    labels = [label for label in comparison.labels if any(cell[0] == label for cell in rows)]
    return drawn_panels(comparison, rows, labels, metric), alternative(task, metric, rows, labels)


def alternative(task: str, metric: str, rows: Rows, labels: Sequence[str]) -> str:
    """What a plot shows, for readers who cannot see it: the values at the longest length."""
    longest = max(length for _, length in rows if length is not None)
    values = [
        f"{label} {format_value(metric, rows[label, longest].value, None)}"
        for label in labels
        if (label, longest) in rows
    ]
    return f"{task}: {axis_label(metric)} against length in tokens. At {longest:,} tokens: {', '.join(values)}"


def drawn_panels(comparison: Comparison, rows: Rows, labels: Sequence[str], metric: str) -> Any:
    """Draw one panel per scheme on shared axes, with its 95 % confidence band and its model's baseline in grey."""
    from matplotlib import rc_context

    baselines = {label: comparison.baseline_of(label) for label in labels}
    lengths = sorted({length for _, length in rows if length is not None})
    behind = {under for label, under in baselines.items() if under != label}
    drawn = [label for label in labels if label not in behind]
    lines = {label: [rows[label, n] for n in lengths if (label, n) in rows] for label in labels}
    with rc_context(SETTINGS):
        canvas, grid = panels(4.6, 0.8 + 1.3 * -(-len(drawn) // COLUMNS), -(-len(drawn) // COLUMNS), COLUMNS)
        for number, (axes, label) in enumerate(zip(grid, drawn, strict=False)):
            trained = comparison.trained_length_of(label)
            if under := lines.get(baselines[label] or ""):
                x, y = [row.length for row in under], [to_units(metric, row.value) for row in under]
                axes.plot(x, y, color=NEUTRAL, alpha=0.4, linewidth=1.4, marker=only_point(under), zorder=2)
            style = {"color": HUES[number % len(HUES)], "marker": only_point(lines[label])}
            draw_line(axes, lines[label], metric, style)
            axes.axvline(trained, color=NEUTRAL, linestyle=(0, (4, 3)), linewidth=0.8, alpha=0.6, zorder=1)
            axes.set_title(label if len(label) <= 26 else f"{label[:25]}…", loc="left", fontsize=9, pad=3)
            set_axes(axes, lengths, trained, metric)
            axes.tick_params(left=False, bottom=False)
        for axes in grid[len(drawn) :]:
            axes.remove()
        if len(drawn) < len(grid):  # the panel above a gap has the last ticks of its column
            grid[len(drawn) - COLUMNS].tick_params(labelbottom=True)
        canvas.supxlabel("length (tokens; multiples of the trained length)", fontsize=9.5)
        canvas.supylabel(axis_label(metric), fontsize=9.5)
        return canvas


def only_point(line: Sequence[Row]) -> str:
    """Marker of a line in a panel: none, but where it is a single point, which would not be seen."""
    return MARKERS[0] if len(line) == 1 else ""


def set_axes(axes: Any, lengths: Sequence[int], trained_length: int, metric: str) -> None:
    """Set ticks, limits and frame, the same in every plot of lengths."""
    length_ticks(axes, lengths, trained_length)
    if is_share(metric):
        axes.set_ylim(-4, 104)
    axes.grid(axis="y", color=NEUTRAL, alpha=0.15, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def draw_line(axes: Any, line: Sequence[Row], metric: str, style: Mapping[str, Any]) -> None:
    """Draw one entry: points, the line between them, and the confidence band."""
    x = [row.length or 0 for row in line]
    axes.plot(x, [to_units(metric, row.value) for row in line], markersize=5, linewidth=1.7, zorder=3, **style)
    intervals = [(at, interval(row)) for at, row in zip(x, line, strict=True)]
    band = [(at, *found) for at, found in intervals if found is not None]
    if not band:
        return
    x = [at for at, _, _ in band]
    low, high = ([to_units(metric, point[bound]) for point in band] for bound in (1, 2))
    axes.fill_between(x, low, high, color=style["color"], alpha=0.14, linewidth=0, zorder=1)
    if len(x) == 1:  # a band over a single point has no width
        axes.vlines(x, low, high, color=style["color"], alpha=0.6, linewidth=1.2, zorder=2)
