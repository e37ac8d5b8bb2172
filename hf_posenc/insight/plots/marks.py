"""Figures and common parts of plots: panels, curves, titles, legends. Maps are in `bases`.

Colours are those of Okabe and Ito, for every kind of colour vision. After six lines they repeat with other dashes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.plotting import COLOURS, DOTS_PER_INCH, MARKERS, NEUTRAL, SETTINGS, WIDEST, require_matplotlib
from hf_posenc.insight.plots.registry import Plot, Sheet

HUES = COLOURS[1:7]
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
FAINT = 0.12
INK = "#1a1a1a"  # colour of text and axes
HEADING = 11  # points
PER_INCH = 11.5  # characters of a heading
MARKED = 8  # markers on a long curve
THINNEST, TAPER = 1.5, 0.8  # points: width of the last curve, and how much wider each earlier one is
TAPERED = 4  # curves; if there are more, all are thin
FLAT = 0.1  # share of the common range; a curve that spans less looks constant


def style(number: int) -> dict[str, Any]:
    """Return colour and dashes of the n-th line."""
    return {"color": HUES[number % len(HUES)], "linestyle": DASHES[number // len(HUES) % len(DASHES)]}


def columns(count: int) -> int:
    """Return the number of panels per row."""
    return 2 if count == 4 else min(count, 3)


def panels(
    figure: Any, count: int, width: float, height: float, *, across: int | None = None, **shared: Any
) -> list[Any]:
    """Create panels in a grid, each of a size in inches; ``shared`` is passed to ``Figure.subplots``."""
    across = across or columns(count)
    down = math.ceil(count / across)
    figure.set_size_inches(min(WIDEST, max(4.0, across * width)), down * height + 0.35)
    grid = figure.subplots(down, across, squeeze=False, **shared).flatten().tolist()
    for empty in grid[count:]:
        empty.set_axis_off()
    return grid[:count]


def sheet_panels(
    figure: Any,
    sheets: Sequence[Sheet],
    size: tuple[float, float],
    names: tuple[str, str],
    *,
    room: float = 3.6,
    **shared: Any,
) -> list[Any]:
    """Create one panel per scheme with its name and axis labels; only the panels at the left have a y label.

    Args:
        figure: empty figure.
        sheets: one sheet per panel.
        size: width and height of a panel in inches.
        names: labels of x and y.
        room: width for the name of a scheme, in inches.
        **shared: passed to ``Figure.subplots``.
    """
    grid = panels(figure, len(sheets), *size, **shared)
    for number, (axes, sheet) in enumerate(zip(grid, sheets, strict=True)):
        axes.set_title(named(labelled(sheet), room), loc="left", fontsize=10)
        axes.set_xlabel(names[0])
        if number % columns(len(sheets)) == 0:
            axes.set_ylabel(names[1])
    return grid


def legend(figure: Any, *panels: Any) -> None:
    """Draw a legend of the lines of all panels under the plot, each name once, if there are at least two."""
    named = {label: mark for axes in panels for mark, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if len(named) > 1:
        legend_of(figure, named)


def legend_of(figure: Any, named: Mapping[str, Any]) -> None:
    """Draw a legend of marks, by name, under the plot."""
    across = max(1, min(5, int(13 * figure.get_figwidth()) // (7 + max(map(len, named)))))
    figure.set_size_inches(figure.get_figwidth(), figure.get_figheight() + 0.2 * math.ceil(len(named) / across) + 0.1)
    figure.legend(
        list(named.values()), list(named), loc="outside lower left", ncols=across, frameon=False, handlelength=2.4
    )


def curve(axes: Any, x: Tensor, y: Tensor, label: str, number: int, of: int = 1, *, tapered: bool = True) -> None:
    """Draw curve ``number`` of ``of``; earlier curves are wider and markers alternate, so that none hides another."""
    long = len(x) > 40
    every = max(1, len(x) // MARKED) if long else of
    width = THINNEST + TAPER * (of - 1 - number) if tapered and of <= TAPERED else THINNEST
    axes.plot(
        x.double().numpy(), y.double().numpy(), label=label,
        marker=None if long and of == 1 else MARKERS[1:][number % (len(MARKERS) - 1)],
        markevery=(number * every // of % len(x), every), markersize=3.5, linewidth=width, **style(number),
    )  # fmt: skip


def comparable(curves: Sequence[Tensor]) -> bool:
    """Whether each curve, constants aside, spans enough of the common range to be read on one pair of axes."""
    finite = [values[values.isfinite()].double() for values in curves]
    spans = [float(values.max() - values.min()) for values in finite if len(values)]
    every = torch.cat(finite)
    common = float(every.max() - every.min()) if len(every) else 0.0
    return all(span == 0 or span >= FLAT * common for span in spans)


def named(label: str, inches: float) -> str:
    """Break a label after ``, : +`` at the width of its panel."""
    most, lines = max(8, int(inches * 12.5)), [""]
    for piece in re.split(r"(?<=[,:+ ])", label):
        if lines[-1] and len(lines[-1]) + len(piece) > most:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.strip() for line in lines)


def labelled(sheet: Sheet) -> str:
    """Return the label of a scheme and, if the sheet names them, the heads that it shows."""
    head = sheet.numbers.get("head")
    return sheet.label if head is None else f"{sheet.label}, head{'s' * isinstance(head, str)} {head}"


def figure(plot: Plot, drawn: Sequence[Sheet]) -> Any:
    """Draw a matplotlib figure of some sheets.

    Args:
        plot: the plot the sheets belong to.
        drawn: what to draw.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    colours = {name: INK for name, value in SETTINGS.items() if value == NEUTRAL}
    with rc_context({**SETTINGS, **colours}):
        canvas = Figure(figsize=(6.0, 4.0), dpi=DOTS_PER_INCH, layout="constrained")
        plot.draw(canvas, drawn)
        lines = [*plot.title.split("\n"), *filter(None, canvas.get_suptitle().split("\n"))]
        broken = [fill(line, int(canvas.get_figwidth() * PER_INCH)) for line in lines]
        canvas.suptitle("\n".join(broken), fontsize=HEADING, x=0.01, ha="left")
        return canvas
