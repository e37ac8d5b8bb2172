"""Plots of a comparison for its HTML page: a metric against length.

The palette of Okabe and Ito is colour-blind safe and visible on white and black; beyond six schemes, colours repeat
with other line styles and markers. The unpatched baseline has the colour of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_posenc.core.plotting.figures import COLOURS, MARKERS, figure, length_ticks
from hf_posenc.core.plotting.svg import NEUTRAL, SETTINGS, svg_of
from hf_posenc.eval.report.phrases import (
    axis_label,
    is_share,
    metric_name,
    to_units,
)
from hf_posenc.eval.report.plots import mark_trained
from hf_posenc.eval.results.comparison import Comparison, interval, rows_by_cell
from hf_posenc.eval.results.rows import Row

HUES = COLOURS[1:7]
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
LEGEND_WIDTH = 46  # characters per legend line


def styles(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Choose colour, line style and marker of every entry, the same in all plots."""
    schemes = [scheme["label"] for scheme in comparison.about["schemes"] if scheme["scheme"] is not None]
    found = {label: {"color": NEUTRAL, "linestyle": (0, (1, 1.2)), "marker": MARKERS[0]} for label in comparison.labels}
    for number, label in enumerate(schemes):
        found[label] = {
            "color": HUES[number % len(HUES)],
            "linestyle": DASHES[number // len(HUES) % len(DASHES)],
            "marker": MARKERS[1:][number % (len(MARKERS) - 1)],
        }
    return found


def curves(comparison: Comparison, task: str, metric: str) -> str:
    """Plot a metric against length, one line per entry with its 95 % confidence band, as SVG."""
    from matplotlib import rc_context

    rows = rows_by_cell(comparison.rows, task, metric)
    labels = [label for label in comparison.labels if any(cell[0] == label for cell in rows)]
    lengths = sorted({length for _, length in rows if length is not None})
    columns = max(1, min(3, LEGEND_WIDTH // (8 + max(map(len, labels)))))
    with rc_context(SETTINGS):
        canvas, axes = figure(4.4, 3.1 + 0.19 * -(-len(labels) // columns))
        for number, label in enumerate(labels):
            line = [rows[label, length] for length in lengths if (label, length) in rows]
            offset = 2 ** (0.02 * (number - (len(labels) - 1) / 2))  # keep coinciding lines visible
            draw_line(axes, line, offset, metric, styles(comparison)[label])
        mark_trained(axes, comparison.about["trained_length"], NEUTRAL, above=True)
        length_ticks(axes, lengths, comparison.about["trained_length"])
        axes.set_xlabel("length (tokens; multiples of the trained length)")
        axes.set_ylabel(axis_label(metric))
        if is_share(metric):
            axes.set_ylim(-4, 104)
        axes.grid(axis="y", color=NEUTRAL, alpha=0.15, linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
        canvas.legend(
            axes.get_lines()[: len(labels)], [shortened(label) for label in labels], loc="outside lower left",
            ncols=columns, frameon=False, fontsize=9, handlelength=2.6, columnspacing=1.4,
        )  # fmt: skip
        described = f"{task}: {metric_name(metric)} against length, one line for each of {len(labels)} schemes"
        return svg_of(canvas, described)


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
