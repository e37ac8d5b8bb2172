"""Plots of a comparison for its HTML page: a metric against length.

The palette of Okabe and Ito is colour-blind safe and visible on white and black; beyond six schemes, colours repeat
with other line styles and markers. Unpatched baselines, one for each model, have the colour of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from hf_posenc.core.plotting.figures import COLOURS, MARKERS, figure, length_ticks, panels
from hf_posenc.core.plotting.svg import NEUTRAL, SETTINGS, svg_of
from hf_posenc.eval.report.phrases import (
    axis_label,
    format_value,
    is_share,
    to_units,
)
from hf_posenc.eval.report.plots import mark_trained
from hf_posenc.eval.results.comparison import Comparison, interval, rows_by_cell
from hf_posenc.eval.results.effective_length import trained_length_of
from hf_posenc.eval.results.rows import Row

HUES = COLOURS[1:7]
BASELINES = (((0, (1, 1.2)), "o"), ((0, (3, 1.2)), "*"), ((0, (1, 3)), "X"))
"""Line styles and markers of the unpatched models."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
Rows = Mapping[tuple[str, int | None], Row]
MOST_TOGETHER = 4  # entries whose bands can be told apart in one plot
PANEL_COLUMNS = 2  # readable at the width of a phone
LEGEND_WIDTH = 46  # characters per legend line


def styles(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Choose colour, line style and marker of every entry, the same in all plots."""
    schemes = [scheme["label"] for scheme in comparison.about["schemes"] if scheme["scheme"] is not None]
    baselines = [label for label in comparison.labels if label not in schemes]
    found = {
        label: {"color": NEUTRAL, "linestyle": dash, "marker": marker}
        for label, (dash, marker) in zip(baselines, cycle(BASELINES), strict=False)
    }
    for number, label in enumerate(schemes):
        found[label] = {
            "color": HUES[number % len(HUES)],
            "linestyle": DASHES[number // len(HUES) % len(DASHES)],
            "marker": MARKERS[1:][number % (len(MARKERS) - 1)],
        }
    return found


def curves(comparison: Comparison, task: str, metric: str) -> str:
    """Plot a metric against length as SVG, see `curves_figure`."""
    return svg_of(*curves_figure(comparison, task, metric))


def curves_figure(comparison: Comparison, task: str, metric: str) -> tuple[Any, str]:
    """Draw a metric against length, together or in panels where there are many entries; figure and description."""
    rows = rows_by_cell(comparison.rows, task, metric)
    labels = [label for label in comparison.labels if any(cell[0] == label for cell in rows)]
    draw = curves_in_panels if in_panels(comparison, task, metric) else curves_together
    return draw(comparison, rows, labels, metric), alternative(task, metric, rows, labels)


def in_panels(comparison: Comparison, task: str, metric: str) -> bool:
    """Whether a plot of this metric has panels."""
    drawn = {row.scheme for row in comparison.rows if (row.task, row.metric, row.depth) == (task, metric, None)}
    return len(drawn & set(comparison.labels)) > MOST_TOGETHER


def alternative(task: str, metric: str, rows: Rows, labels: Sequence[str]) -> str:
    """What a plot shows, for readers who cannot see it: the values at the longest length."""
    longest = max(length for _, length in rows if length is not None)
    values = [
        f"{label} {format_value(metric, rows[label, longest].value, None)}"
        for label in labels
        if (label, longest) in rows
    ]
    return f"{task}: {axis_label(metric)} against length in tokens. At {longest:,} tokens: {', '.join(values)}"


def curves_together(comparison: Comparison, rows: Rows, labels: Sequence[str], metric: str) -> Any:
    """Draw one line per entry with its 95 % confidence band, all in one plot."""
    from matplotlib import rc_context

    lengths = sorted({length for _, length in rows if length is not None})
    columns = max(1, min(3, LEGEND_WIDTH // (8 + max(map(len, labels)))))
    with rc_context(SETTINGS):
        canvas, axes = figure(4.4, 3.1 + 0.19 * -(-len(labels) // columns))
        for number, label in enumerate(labels):
            line = [rows[label, length] for length in lengths if (label, length) in rows]
            offset = 2 ** (0.02 * (number - (len(labels) - 1) / 2))  # keep coinciding lines visible
            draw_line(axes, line, offset, metric, styles(comparison)[label])
        mark_trained(axes, comparison.about["trained_length"], NEUTRAL, above=True)
        axes.set_xlabel("length (tokens; multiples of the trained length)")
        axes.set_ylabel(axis_label(metric))
        set_axes(axes, lengths, comparison.about["trained_length"], metric)
        canvas.legend(
            axes.get_lines()[: len(labels)], [shortened(label) for label in labels], loc="outside lower left",
            ncols=columns, frameon=False, fontsize=9, handlelength=2.6, columnspacing=1.4,
        )  # fmt: skip
        return canvas


def curves_in_panels(comparison: Comparison, rows: Rows, labels: Sequence[str], metric: str) -> Any:
    """Draw one panel per scheme on shared axes, with its 95 % confidence band and its model's baseline in grey."""
    from matplotlib import rc_context

    baselines = baselines_of(comparison)
    lengths = sorted({length for _, length in rows if length is not None})
    behind = {baselines.get(label) for label in labels if baselines.get(label) != label}
    drawn = [label for label in labels if label not in behind]
    lines = {label: [rows[label, n] for n in lengths if (label, n) in rows] for label in labels}
    with rc_context(SETTINGS):
        canvas, grid = panels(
            4.6, 0.8 + 1.3 * -(-len(drawn) // PANEL_COLUMNS), -(-len(drawn) // PANEL_COLUMNS), PANEL_COLUMNS
        )
        for axes, label in zip(grid, drawn, strict=False):
            trained = trained_length_of(comparison, label)
            if under := lines.get(baselines.get(label, "")):
                x, y = [row.length for row in under], [to_units(metric, row.value) for row in under]
                axes.plot(x, y, color=NEUTRAL, alpha=0.4, linewidth=1.4, marker=only_point(under), zorder=2)
            style = {"linestyle": "-", "marker": only_point(lines[label])}
            draw_line(axes, lines[label], 1.0, metric, styles(comparison)[label] | style)
            axes.axvline(trained, color=NEUTRAL, linestyle=(0, (4, 3)), linewidth=0.8, alpha=0.6, zorder=1)
            axes.set_title(shortened(label, 26), loc="left", fontsize=9, pad=3)
            set_axes(axes, lengths, trained, metric)
            axes.tick_params(left=False, bottom=False)
        for axes in grid[len(drawn) :]:
            axes.remove()
        if len(drawn) < len(grid):  # the panel above a gap has the last ticks of its column
            grid[len(drawn) - PANEL_COLUMNS].tick_params(labelbottom=True)
        canvas.supxlabel("length (tokens; multiples of the trained length)", fontsize=9.5)
        canvas.supylabel(axis_label(metric), fontsize=9.5)
        return canvas


def baselines_of(comparison: Comparison) -> dict[str, str]:
    """Label of every entry to that of the unpatched entry on the same model, where there is one."""
    entries = comparison.about["schemes"]
    unpatched = {entry.get("model_digest"): entry["label"] for entry in entries if entry["scheme"] is None}
    digests = {entry["label"]: entry.get("model_digest") for entry in entries}
    return {label: unpatched[digest] for label, digest in digests.items() if digest in unpatched}


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


def draw_line(axes: Any, line: Sequence[Row], offset: float, metric: str, style: Mapping[str, Any]) -> None:
    """Draw one entry: points, the line between them, and the confidence band."""
    x = [offset * (row.length or 0) for row in line]
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


def shortened(label: str, most: int = 44) -> str:
    """Cut a label to the width of a legend."""
    return label if len(label) <= most else f"{label[: most - 1]}…"
