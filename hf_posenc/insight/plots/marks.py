"""Marks that plots share: maps with one colour scale, curves with one pair of axes.

Colours are Okabe and Ito's, distinguished by every reader; with more than six lines they repeat with other dashes.
Maps run from dark blue to yellow (cividis), and from purple over white to orange where numbers have two signs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.plotting.figures import COLOURS, MARKERS
from hf_posenc.insight.plots.registry import Sheet

HUES = COLOURS[1:7]
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
FAINT = 0.12


def ink() -> str:
    """The colour of text, on paper or on a page."""
    from matplotlib import rcParams

    return str(rcParams["text.color"])


def style(number: int) -> dict[str, Any]:
    """Colour and dashes of the n-th line."""
    return {"color": HUES[number % len(HUES)], "linestyle": DASHES[number // len(HUES) % len(DASHES)]}


def columns(count: int) -> int:
    """Panels side by side."""
    return count if count <= 3 else 2 if count == 4 else 3 if count <= 6 else 4


def panels(
    figure: Any, count: int, width: float, height: float, *, across: int | None = None, **shared: Any
) -> list[Any]:
    """Axes in a grid, each of a size in inches; ``shared`` is passed to ``Figure.subplots``."""
    across = across or columns(count)
    down = math.ceil(count / across)
    figure.set_size_inches(max(4.0, across * width), down * height + 0.35)
    grid = figure.subplots(down, across, squeeze=False, **shared).flatten().tolist()
    for empty in grid[count:]:
        empty.set_axis_off()
    return grid[:count]


@dataclass(frozen=True)
class Limits:
    """A colour scale that several maps share."""

    low: float
    high: float
    colours: str

    @classmethod
    def of(cls, maps: Sequence[Tensor]) -> Limits:
        """From the least number to the greatest; the same both ways from zero where there are both signs."""
        finite = torch.cat([values[values.isfinite()].double().flatten() for values in maps])
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
        if low < -1e-9 < 1e-9 < high:
            size = max(-low, high)
            return cls(-size, size, "PuOr_r")
        return cls(low, high if high > low else low + 1.0, "cividis")


def scales(sheets: Sequence[Sheet], scale_sheets: Sequence[Sheet], key: str) -> list[Limits]:
    """The colour scale of each sheet: the common one of ``among``, or its own where ``among`` is empty."""
    if scale_sheets:
        return [Limits.of([sheet.numbers[key] for sheet in scale_sheets])] * len(sheets)
    return [Limits.of([sheet.numbers[key]]) for sheet in sheets]


def colour_bars(figure: Any, panels: Sequence[Any], images: Sequence[Any], label: str) -> list[Any]:
    """One colour bar for all panels, or one for each where their scales differ."""
    if len({image.get_clim() for image in images}) == 1:
        return [figure.colorbar(images[-1], ax=list(panels), label=label, shrink=0.85)]
    return [figure.colorbar(i, ax=axes, label=label, shrink=0.85) for i, axes in zip(images, panels, strict=True)]


def heat_map(
    axes: Any, values: Tensor, limits: Limits, *, start: tuple[float, float] = (0, 0), square: bool = True
) -> Any:
    """``values [down, across]`` as coloured cells, the first at ``start`` (down, across); no colour where NaN."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgba

    colours = colormaps[limits.colours].with_extremes(bad=to_rgba(ink(), FAINT))
    down, across = values.shape
    edges = (start[1] - 0.5, start[1] + across - 0.5, start[0] + down - 0.5, start[0] - 0.5)
    image = axes.imshow(
        values.double().numpy(), cmap=colours, vmin=limits.low,
        vmax=limits.high, aspect="equal" if square else "auto", interpolation="none", extent=edges,
    )  # fmt: skip
    axes.tick_params(length=2.5)
    axes.locator_params(integer=True, nbins=6)
    axes.spines[:].set_visible(False)
    return image


def plain(axes: Any) -> None:
    """Axes of curves: faint lines across, no box."""
    axes.grid(axis="y", color=ink(), alpha=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend(figure: Any, *panels: Any) -> None:
    """Names of the lines of all panels, each once, under the plot, where there is more than one."""
    named = {label: mark for axes in panels for mark, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if len(named) < 2:
        return
    across = max(1, min(5, int(13 * figure.get_figwidth()) // (7 + max(map(len, named)))))
    figure.set_size_inches(figure.get_figwidth(), figure.get_figheight() + 0.2 * math.ceil(len(named) / across))
    figure.legend(
        list(named.values()), list(named), loc="outside lower left", ncols=across, frameon=False, handlelength=2.4
    )


def one_pair_of_axes(figure: Any, width: float = 7.0, height: float = 3.4) -> Any:
    """A single panel."""
    figure.set_size_inches(width, height)
    return figure.subplots()


def curve(axes: Any, x: Tensor, y: Tensor, label: str, number: int, *, marked: bool | None = None) -> None:
    """A line through points; short ones have markers."""
    few = len(x) <= 40 if marked is None else marked
    marker = MARKERS[1:][number % (len(MARKERS) - 1)] if few else None
    axes.plot(
        x.double().numpy(), y.double().numpy(), label=label, marker=marker, markersize=3.5, linewidth=1.6,
        **style(number),
    )  # fmt: skip


def shortened(label: str, most: int = 34) -> str:
    """A label that fits over a panel."""
    return label if len(label) <= most else f"{label[: most - 1]}…"


def only(axes: Any, sheets: Sequence[Sheet]) -> None:
    """The name of a single scheme, which needs no legend, over its axes."""
    if len(sheets) == 1:
        axes.set_title(sheets[0].label, loc="left", fontsize=10)
