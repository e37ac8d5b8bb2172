"""Comparison as one self-contained HTML page: inline SVG plots, no scripts, no external resources.

The template escapes all values except the plots; matplotlib and `hf_posenc.core.plotting` escape the texts in these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_posenc.core.plotting import (
    COLOURS,
    MAGNITUDES,
    MARKERS,
    NEUTRAL,
    SETTINGS,
    length_names,
    length_ticks,
    panels,
    svg_of,
)
from hf_posenc.eval.report.phrases import (
    UNITS,
    axis_label,
    format_value,
    is_share,
    metric_name,
    task_title,
    title,
    to_units,
)
from hf_posenc.eval.report.remarks import method, remarks, verdict
from hf_posenc.eval.report.tables import Table, legend, metric_tables, summaries
from hf_posenc.eval.results.comparison import Comparison, interval, rows_by_cell
from hf_posenc.eval.results.rows import Row

if TYPE_CHECKING:
    from markupsafe import Markup


TEMPLATE = Path(__file__).parent / "page.html"
PANELS = (
    "One panel per scheme, all on the same axes; grey is the same model unpatched, dashed the trained length. "
    "Bands: 95 % confidence intervals."
)


def page_html(comparison: Comparison) -> str:
    """Render the page as HTML."""
    from jinja2 import Environment, StrictUndefined

    about = comparison.about
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        title=title(about),
        verdict=verdict(comparison),
        remarks=remarks(comparison),
        sections=[section(comparison, task) for task in comparison.tasks()],
        summaries=summaries(comparison),
        method=method(about),
        command=about["command"],
        versions=about["versions"],
        digests=about["digests"],
    )


def section(comparison: Comparison, task: str) -> dict[str, Any]:
    """Collect the plots and tables of one task."""
    metrics = comparison.metrics(task)
    with_lengths = {row.metric for row in comparison.rows if row.task == task and row.length is not None}
    swept = [metric for metric in metrics if metric in with_lengths]
    drawn = [metric for metric in swept if metric != "ppl"][:2]  # perplexity is exp(loss), drawn already
    deep = comparison.metrics(task, depth=True)
    mapped = [metric for metric in deep if is_share(metric)][:1] + [metric for metric in deep if metric == "nll"]
    return {
        "name": task,
        "title": task_title(task),
        "curves": [
            {"caption": caption(metric, metrics), "picture": curves(comparison, task, metric), "note": PANELS}
            for metric in drawn
        ],
        "maps": [maps_of_metric(comparison, task, metric) for metric in mapped],
        "tables": [table for metric in metrics for table in tables(comparison, task, metric)],
    }


def maps_of_metric(comparison: Comparison, task: str, metric: str) -> dict[str, Any]:
    """Heat maps of one metric, lengths × depths, one for each entry.

    The palette is cividis, which is perceptually uniform and looks the same to colour-blind readers (Nuñez et al. 2018,
    arXiv:1712.01662). Bright is better in every map: the scale of shares is from 0 to 100 %, that of losses from the
    highest value of all entries (dark) to the lowest.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    rows = [r for r in comparison.rows if (r.task, r.metric) == (task, metric) and r.depth is not None]
    values = {(row.scheme, row.length, row.depth): to_units(metric, row.value) for row in rows}
    worst, best = (0.0, 100.0) if is_share(metric) else (max(values.values()), min(values.values()))
    digits, unit = (".0f", "%") if is_share(metric) else (".2f", UNITS.get(metric, ""))
    lengths = sorted({row.length for row in rows if row.length is not None})
    depths = sorted({row.depth for row in rows if row.depth is not None})

    def cell(value: float | None) -> dict[str, str]:
        if value is None:
            return {"text": "–", "colour": "transparent", "ink": "inherit"}
        bright = (value - worst) / (best - worst) if best != worst else 1.0
        colour = to_hex(colormaps[MAGNITUDES](bright))
        return {"text": f"{value:{digits}}", "colour": colour, "ink": "#fff" if bright < 0.55 else "#000"}

    def lines(label: str) -> list[dict[str, Any]]:
        return [
            {"depth": f"{100 * depth:g} %", "cells": [cell(values.get((label, length, depth))) for length in lengths]}
            for depth in depths
        ]

    measured = {row.scheme for row in rows}
    return {
        "name": f"{metric_name(metric)} of the answer" if metric == "nll" else metric_name(metric),
        "worst": f"{worst:{digits}} {unit}".rstrip(), "best": f"{best:{digits}} {unit}".rstrip(),
        "tables": [
            {"label": label, "lengths": length_names(lengths), "lines": lines(label)}
            for label in comparison.labels if label in measured
        ],
    }  # fmt: skip


def caption(metric: str, metrics: list[str]) -> str:
    """Caption of a plot; a task that has an accuracy measures the loss of its answers."""
    return f"{metric_name(metric)} of the answer" if metric == "nll" and is_share(metrics[0]) else metric_name(metric)


def tables(comparison: Comparison, task: str, metric: str) -> list[Table]:
    """The tables of one metric; if there are two, the first explains the marks."""
    first, *differences = metric_tables(comparison, task, metric)
    caption = f"{first.caption}. {legend(comparison)}" if differences else first.caption
    return [first._replace(caption=caption), *differences]


Rows = Mapping[tuple[str, int | None], Row]
HUES = COLOURS[1:7]
COLUMNS = 2  # of panels; readable at the width of a phone


def alternative(task: str, metric: str, rows: Rows, labels: Sequence[str]) -> str:
    """Alternative text of a plot: the values at the longest length."""
    longest = max(length for _, length in rows if length is not None)
    values = [
        f"{label} {format_value(metric, rows[label, longest].value, None)}"
        for label in labels
        if (label, longest) in rows
    ]
    return f"{task}: {axis_label(metric)} against length in tokens. At {longest:,} tokens: {', '.join(values)}"


def curves(comparison: Comparison, task: str, metric: str) -> Markup:
    """Plot a metric against length as SVG, one panel per scheme on shared axes.

    Each panel has a 95 % confidence band, and the baseline of its model in grey.
    """
    from markupsafe import Markup
    from matplotlib import rc_context

    rows = rows_by_cell(comparison.rows, task, metric)
    labels = [label for label in comparison.labels if any(cell[0] == label for cell in rows)]
    baselines = {label: comparison.baseline_of(label) for label in labels}
    lengths = sorted({length for _, length in rows if length is not None})
    baselines_only = {baseline for label, baseline in baselines.items() if baseline != label}
    drawn = [label for label in labels if label not in baselines_only]
    height = -(-len(drawn) // COLUMNS)  # in panels
    lines = {label: [rows[label, n] for n in lengths if (label, n) in rows] for label in labels}
    with rc_context(SETTINGS):
        canvas, grid = panels(4.6, 0.8 + 1.3 * height, height, COLUMNS)
        for number, (axes, label) in enumerate(zip(grid, drawn, strict=False)):
            if baseline := lines.get(baselines[label] or ""):
                x, y = [row.length for row in baseline], [to_units(metric, row.value) for row in baseline]
                axes.plot(x, y, color=NEUTRAL, alpha=0.4, linewidth=1.4, marker=only_point(baseline), zorder=2)
            draw_line(axes, lines[label], metric, HUES[number % len(HUES)])
            axes.set_title(label if len(label) <= 26 else f"{label[:25]}…", loc="left", fontsize=9, pad=3)
            set_axes(axes, lengths, comparison.trained_length_of(label), metric)
        for axes in grid[len(drawn) :]:
            axes.remove()
        if len(drawn) < len(grid):  # the panel above a gap has the last ticks of its column
            grid[len(drawn) - COLUMNS].tick_params(labelbottom=True)
        canvas.supxlabel("length (tokens; multiples of the trained length)", fontsize=9.5)
        canvas.supylabel(axis_label(metric), fontsize=9.5)
        picture = svg_of(canvas, alternative(task, metric, rows, labels))
    return Markup(picture)


def only_point(line: Sequence[Row]) -> str:
    """Marker of a line in a panel: none, except for a single point, which would otherwise be invisible."""
    return MARKERS[0] if len(line) == 1 else ""


def set_axes(axes: Any, lengths: Sequence[int], trained_length: int, metric: str) -> None:
    """Set ticks, limits and frame, the same in every panel, and mark the trained length."""
    axes.axvline(trained_length, color=NEUTRAL, linestyle=(0, (4, 3)), linewidth=0.8, alpha=0.6, zorder=1)
    length_ticks(axes, lengths, trained_length)
    if is_share(metric):
        axes.set_ylim(-4, 104)
    axes.grid(axis="y", color=NEUTRAL, alpha=0.15, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(left=False, bottom=False)


def draw_line(axes: Any, line: Sequence[Row], metric: str, colour: str) -> None:
    """Draw one entry: points, the line between them, and the confidence band."""
    x = [row.length or 0 for row in line]
    y = [to_units(metric, row.value) for row in line]
    axes.plot(x, y, color=colour, marker=only_point(line), markersize=5, linewidth=1.7, zorder=3)
    intervals = [(at, interval(row)) for at, row in zip(x, line, strict=True)]
    band = [(at, *found) for at, found in intervals if found is not None]
    if not band:
        return
    x = [at for at, _, _ in band]
    low, high = ([to_units(metric, point[bound]) for point in band] for bound in (1, 2))
    axes.fill_between(x, low, high, color=colour, alpha=0.14, linewidth=0, zorder=1)
    if len(x) == 1:  # a band over a single point has no width
        axes.vlines(x, low, high, color=colour, alpha=0.6, linewidth=1.2, zorder=2)
