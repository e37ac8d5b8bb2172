"""Quality against cost: the score at the longest length over the time of a forward pass, and the Pareto front.

A line is on the front if none has a better mean score at no more time. Bars are the 95 % interval of the difference
from the first line, over the same documents, and the quartiles of the time: a front of means alone promises more than
it knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_posenc.core.plotting.figures import COLOURS, figure
from hf_posenc.core.plotting.svg import NEUTRAL, SETTINGS
from hf_posenc.eval.report.phrases import axis_label, format_value, to_units
from hf_posenc.insight.leaderboard.line import Line

FRONT, OTHERS = COLOURS[5], COLOURS[7]
WIDTH, HEIGHT, PER_LABEL, MARGINS = 5.8, 2.2, 0.165, 0.6  # inches
LEADER = {
    "arrowstyle": "-", "color": NEUTRAL, "alpha": 0.25, "linewidth": 0.6, "shrinkA": 2, "shrinkB": 3,
    "relpos": (0, 0.5),
}  # fmt: skip
FARTHEST = 1.0
"""Losses that are so many nats above the lowest are drawn at the edge, so that the others can be told apart."""


@dataclass(frozen=True)
class ParetoPoint:
    """A line as a point: time over that of the unpatched model, and the score in the units of its axis."""

    line: Line
    time: tuple[float, float, float]
    score: float


def points_of(lines: Sequence[Line]) -> list[ParetoPoint]:
    """The lines that have both a score at the longest length and a time; the unpatched model has the time 1."""
    found = []
    for line in lines:
        cost, value = line.cost("prefill"), line.longest.value
        time = (1.0, 1.0, 1.0) if line.use == "unpatched" else cost and (cost.time, cost.time_low, cost.time_high)
        if time and value is not None:
            found.append(ParetoPoint(line, time, to_units(line.metric, value)))
    return found


def front(points: Sequence[ParetoPoint]) -> list[ParetoPoint]:
    """The points that no other one dominates, cheapest first."""
    best: list[ParetoPoint] = []
    for point in sorted(points, key=lambda one: (one.time[0], cost_of_score(one))):
        if not best or cost_of_score(point) < cost_of_score(best[-1]):
            best.append(point)
    return best


def cost_of_score(point: ParetoPoint) -> float:
    """The score as something of which less is better."""
    return -point.score if point.line.more_is_better else point.score


def picture(lines: Sequence[Line]) -> tuple[Any, str] | None:
    """Draw the points of one table; the figure and a description in words, or None without two points."""
    from matplotlib import rc_context

    points = points_of(lines)
    if len(points) < 2:
        return None
    chosen = front(points)
    with rc_context(SETTINGS):
        canvas, axes = figure(WIDTH, max(HEIGHT + 1.0, HEIGHT + PER_LABEL * (len(points) - 6)))
        edge = draw_points(axes, points, chosen)
        steps = [point for point in chosen if edge is None or point.score <= edge]
        axes.plot(
            [point.time[0] for point in steps], [point.score for point in steps], color=FRONT, linewidth=1.4, zorder=2,
            drawstyle="steps-post",
        )  # fmt: skip
        axes.set_xlabel("time of a forward pass over that of the unpatched model")
        axes.set_ylabel(axis_label(lines[0].metric))
        axes.grid(color=NEUTRAL, alpha=0.15, linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
        draw_labels(axes, points, chosen, edge)
    return canvas, described(lines, points, chosen)


def draw_points(axes: Any, points: Sequence[ParetoPoint], chosen: Sequence[ParetoPoint]) -> float | None:
    """Draw points with their bars; the loss at which those that are far off are drawn, None where there are none."""
    lowest = min(point.score for point in points)
    far = not points[0].line.more_is_better and any(point.score > lowest + FARTHEST for point in points)
    edge = lowest + FARTHEST if far else None
    for point in points:
        colour = FRONT if point in chosen else OTHERS
        beyond = edge is not None and point.score > edge
        x, low, high = point.time
        y = edge if beyond else point.score
        axes.plot([x], [y], marker="^" if beyond else "o", markersize=5, color=colour, linestyle="", zorder=3)
        axes.hlines(y, low, high, color=colour, linewidth=0.9, alpha=0.7, zorder=1)
        behind = point.line.behind
        if behind is not None and behind.low is not None and behind.high is not None and not beyond:
            below, above = (
                point.score + to_units(point.line.metric, bound - behind.value) for bound in (behind.low, behind.high)
            )
            if point.line.is_share:  # Student's t knows no bounds
                below, above = max(below, 0.0), min(above, 100.0)
            axes.vlines(x, below, above if edge is None else min(above, edge), color=colour, linewidth=0.9, alpha=0.5)
    return edge


def draw_labels(axes: Any, points: Sequence[ParetoPoint], chosen: Sequence[ParetoPoint], edge: float | None) -> None:
    """Write the names in a column beside the axes, in the order of the scores, with thin lines to their points."""
    ordered = sorted(points, key=lambda point: (-point.score, point.time[0]))
    low, high = axes.get_ylim()
    drawn = [point.score if edge is None else min(point.score, edge) for point in ordered]
    heights = apart([(y - low) / (high - low) for y in drawn], PER_LABEL / (axes.figure.get_figheight() - MARGINS))
    for point, y, height in zip(ordered, drawn, heights, strict=True):
        value = f" {point.score:.2f}" if y < point.score else ""
        axes.annotate(
            point.line.scheme + value, xy=(point.time[0], y), xycoords="data", xytext=(1.06, height),
            textcoords="axes fraction", va="center", fontsize=8.5, color=FRONT if point in chosen else NEUTRAL,
            annotation_clip=False, arrowprops=LEADER,
        )  # fmt: skip


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights from the highest to the lowest, moved as far as needed to be ``gap`` apart and to stay within 0 … 1."""
    found: list[float] = []
    for number, height in enumerate(heights):
        room = (len(heights) - 1 - number) * gap  # for those below
        found.append(max(min(height, found[-1] - gap if found else 1.0), room))
    return found


def described(lines: Sequence[Line], points: Sequence[ParetoPoint], chosen: Sequence[ParetoPoint]) -> str:
    """What the picture shows, for readers who cannot see it."""
    first = lines[0]
    shown = [
        f"{point.line.scheme} {format_value(first.metric, point.line.longest.value or 0.0, None)} at "
        f"{point.time[0]:.2f} times the time"
        for point in chosen
    ]
    return (
        f"{first.model}, {first.task}: {axis_label(first.metric)} at {first.longest.length:,} tokens against time of a "
        f"forward pass, {len(points)} lines. On the Pareto front, cheapest first: {', '.join(shown)}"
    )
