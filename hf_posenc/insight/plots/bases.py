"""Base classes of plots (maps, lines), with one rule for all scales:

signed numbers (codes, scores, biases, changes)   purple below zero, white at zero, orange above
magnitudes (distances, shares)                    dark blue to yellow (cividis)
every scheme has a scale of its own, which ends at its largest absolute value
a colour bar of signed numbers                    shows zero and the part of its scale that occurs
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from hf_posenc.core.plotting import MAGNITUDES, SIGNED, plain
from hf_posenc.insight.plots.marks import FAINT, INK, comparable, curve, labelled, legend, sheet_panels
from hf_posenc.insight.plots.registry import Plot, Sheet

OWN_SCALES = "each scheme has its own scale"
SAME_SCALE = "all panels have one scale"
BESIDE_A_BAR = 2.2  # inches for the name of a map beside a colour bar


def limits_of(maps: Sequence[Tensor], *, signed: bool = True) -> tuple[float, float]:
    """Return the two ends of a scale for all finite numbers; for signed numbers, symmetric about zero."""
    finite = torch.cat([values[values.isfinite()].double().flatten() for values in maps])
    if signed:
        size = float(f"{float(finite.abs().max()):.6g}") if len(finite) else 1.0  # 1 and 1.0000001 are one scale
        return -(size or 1.0), size or 1.0
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    return (low, high) if high > low else (low, low + 1.0)


def say_scale(figure: Any, panels: int, limits: Sequence[tuple[float, float]] = ()) -> None:
    """Add to the heading whether all panels have one scale; a single panel needs no remark."""
    if panels > 1:
        remark = SAME_SCALE if len(set(limits)) == 1 else OWN_SCALES
        figure.suptitle("\n".join(filter(None, [figure.get_suptitle(), remark])))


class Maps(Plot):
    """Base of plots with one map per scheme, by default of queries (down) and keys (across).

    Class attributes:
        key: key of the map in `numbers`.
        unit: label of the colour bar.
        signed: whether the numbers are signed.
        square: whether cells are square.
        axis_names: labels of x and y.
        sizes: size of a single panel, and of a panel beside others, in inches.
    """

    key: ClassVar[str] = ""
    unit: ClassVar[str] = ""
    signed: ClassVar[bool] = True
    square: ClassVar[bool] = True
    axis_names: ClassVar[tuple[str, str]] = "key position (tokens)", "query position (tokens)"
    sizes: ClassVar[tuple[tuple[float, float], ...]] = (4.6, 3.9), (3.2, 3.0)

    def draw(self, figure: Any, sheets: Sequence[Sheet]) -> None:
        """Draw one map per scheme; the heads of a scheme have one scale."""
        grid = self.panels(figure, sheets)
        colours = SIGNED if self.signed else MAGNITUDES
        limits, images, ranges = [], [], []
        for axes, sheet in zip(grid, sheets, strict=True):
            maps = [one.numbers[self.key] for one in sheets if one.label == sheet.label]
            limits.append(limits_of(maps, signed=self.signed))
            ranges.append(limits_of([*maps, torch.zeros(1)] if self.signed else maps, signed=False))
            images.append(heat_map(axes, sheet.numbers[self.key], limits[-1], colours, square=self.square))
            self.mark(axes, sheet)
        colour_bars(figure, grid, images, ranges, self.unit)
        say_scale(figure, len(grid), limits)

    def panels(self, figure: Any, sheets: Sequence[Sheet]) -> list[Any]:
        """One panel per scheme, named, with room for a colour bar."""
        size = self.sizes[len(sheets) > 1]
        return sheet_panels(figure, sheets, size, self.axis_names, room=BESIDE_A_BAR)

    def mark(self, axes: Any, sheet: Sheet) -> None:
        """Draw additional marks on a map."""


def colour_bars(
    figure: Any, panels: Sequence[Any], images: Sequence[Any], ranges: Sequence[tuple[float, float]], label: str
) -> None:
    """Draw one colour bar for all panels, or one for each if scales differ; it shows the range of its numbers."""
    if len({image.get_clim() for image in images}) == 1:
        lows, highs = zip(*ranges, strict=True)
        bar = figure.colorbar(images[-1], ax=list(panels), label=label, shrink=0.85)
        bar.ax.set_ylim(min(lows), max(highs))
        return
    for axes, image, limits in zip(panels, images, ranges, strict=True):
        figure.colorbar(image, ax=axes, label=label, shrink=0.85).ax.set_ylim(*limits)


def heat_map(axes: Any, values: Tensor, limits: tuple[float, float], colours: Any, *, square: bool = True) -> Any:
    """Draw ``values [row, column]`` as coloured cells; NaN is grey."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgba

    colours = colormaps.get_cmap(colours).with_extremes(bad=to_rgba(INK, FAINT))
    image = axes.imshow(
        values.double().numpy(), cmap=colours, vmin=limits[0],
        vmax=limits[1], aspect="equal" if square else "auto", interpolation="none",
    )  # fmt: skip
    axes.tick_params(length=2.5)
    axes.locator_params(integer=True, nbins=6)
    axes.spines[:].set_visible(False)
    return image


Line = tuple[str, Tensor, Tensor]
"""Name, x and y of a line; the only line of a scheme has an empty name."""


class Lines(Plot):
    """Base of plots with lines over positions or distances, by default one per scheme.

    Every scheme has a panel. If each has a single line, and none would look flat, all share one panel.

    Class attributes:
        key: key in `numbers` of the y of the only line; its x is ``distance``.
        axis_names: labels of x and y.
        tapered: whether earlier lines are wider, so that coinciding lines stay visible.
    """

    key: ClassVar[str] = ""
    axis_names: ClassVar[tuple[str, str]]
    tapered: ClassVar[bool] = True

    def draw(self, figure: Any, sheets: Sequence[Sheet]) -> None:
        """Draw the lines, and their names where a panel has several."""
        found = [list(self.lines(sheet.numbers)) for sheet in sheets]
        panels = sheets
        single = len(sheets) > 1 and all(len(lines) == 1 and not lines[0][0] for lines in found)
        if single and comparable([lines[0][2] for lines in found]):
            found = [[(labelled(sheet), *lines[0][1:]) for sheet, lines in zip(sheets, found, strict=True)]]
            panels = [Sheet("", {})]
        grid = sheet_panels(figure, panels, (6.8 if len(panels) == 1 else 3.6, 3.0), self.axis_names)
        for axes, lines in zip(grid, found, strict=True):
            for number, (name, x, y) in enumerate(lines):
                curve(axes, x, y, name, number, len(lines), tapered=self.tapered)
            self.mark(axes, sheets)
            plain(axes)
        say_scale(figure, len(grid))
        legend(figure, *grid)

    def lines(self, numbers: Mapping[str, Any]) -> Iterable[Line]:
        """The lines of a scheme."""
        yield "", numbers["distance"], numbers[self.key]

    def mark(self, axes: Any, sheets: Sequence[Sheet]) -> None:
        """Anything else in a panel."""
