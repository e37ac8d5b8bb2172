"""The picture of a finding: mean score of every variant along the axis, with 95 % bars, and the verdict above it.

Where there is a single point, variants are lines of a dot plot. Bars are of each mean alone; the verdict rests on
paired differences, which are known better.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from hf_posenc.core.plotting.figures import COLOURS, DOTS_PER_INCH, MARKERS, require_matplotlib, save_figure
from hf_posenc.eval.results.comparison import mean_interval
from hf_posenc.insight.findings.claims import Metric
from hf_posenc.insight.findings.reproduction import Mean, Reproduction

FILES = ("picture.png", "picture.svg")
PANEL = 4.6, 3.4  # inches
CHARACTERS = 14  # of the title, an inch


def write_pictures(result: Reproduction, folder: Path) -> None:
    """Write the picture as PNG and SVG."""
    canvas = draw(result)
    for name in FILES:
        save_figure(canvas, folder / name)


def draw(result: Reproduction) -> Any:
    """Draw one panel for each metric, and return the matplotlib figure."""
    require_matplotlib()
    from matplotlib.figure import Figure

    finding = result.finding
    metrics = [metric for metric in finding.metrics if len(result.means(metric)) > 1]
    single = len(finding.points) == 1
    width, height = PANEL[0] * len(metrics) + 1.6, PANEL[1] + 0.8
    canvas = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    panels = canvas.subplots(1, len(metrics), squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        (dots if single else lines)(axes, result.means(metric), result, metric)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    if not single:
        panels[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    label = f"{finding.name}: {result.verdict}" + (" (quick budget)" if result.quick else "")
    canvas.suptitle(label + "\n" + fill(finding.claim, int(CHARACTERS * width)), fontsize=9.5, x=0.01, ha="left")
    return canvas


def lines(axes: Any, means: Sequence[Mean], result: Reproduction, metric: Metric) -> None:
    """Draw one line for each variant along the axis."""
    points, variants = result.finding.points, list(result.finding.variants)
    for number, variant in enumerate(variants):
        own = sorted((mean for mean in means if mean.variant == variant), key=lambda mean: mean.at)
        style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        x, y = [mean.at for mean in own], [mean.mean for mean in own]
        axes.errorbar(x, y, bars(own, metric), label=variant, linewidth=1.6, elinewidth=0.7, ms=5, **style)
    if points[0] > 0 and points[-1] / points[0] >= 4:
        axes.set_xscale("log", base=2)
    axes.set_xticks(points, [result.finding.point_format.format(point) for point in points])
    axes.minorticks_off()
    axes.set_xlabel(result.finding.axis)
    axes.set_ylabel(f"{metric.name} ({metric.unit})")
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)


def dots(axes: Any, means: Sequence[Mean], result: Reproduction, metric: Metric) -> None:
    """Draw one dot with its bar for each variant, the first on top."""
    rows = [len(means) - number for number in range(len(means))]
    axes.errorbar(
        [mean.mean for mean in means], rows, xerr=bars(means, metric), fmt="o", color=COLOURS[0], elinewidth=0.8, ms=5
    )
    axes.set_yticks(rows, [mean.variant for mean in means])
    axes.margins(y=0.15)
    axes.set_xlabel(f"{metric.name} ({metric.unit})")
    axes.grid(axis="x", color="#dddddd", linewidth=0.8)


def bars(means: Sequence[Mean], metric: Metric) -> list[list[float]]:
    """How far the 95 % intervals of means reach below and above them; 0 for a mean without one."""
    share = metric.unit == "share"
    intervals = [mean_interval(one.mean, one.stderr, one.clusters, share=share) for one in means]
    ends = [(one.mean, *(found or (one.mean, one.mean))) for one, found in zip(means, intervals, strict=True)]
    return [[mean - low for mean, low, _ in ends], [high - mean for mean, _, high in ends]]
