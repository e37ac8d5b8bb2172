"""Panels with a map or with lines, and their scales. One rule for all plots:

    signed numbers (codes, scores, biases, changes)   purple below zero, white at zero, orange above
    magnitudes (distances, shares)                    dark blue to yellow (cividis)
    every panel has a scale of its own, which ends at its largest absolute value; with --same-scale all have one

The frames of an animation share the scale of their panel.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hf_posenc.core.plotting import MAGNITUDES, SIGNED
from hf_posenc.insight.plots.marks import FAINT, curve, ink, legend, plain, sheet_panels
from hf_posenc.insight.plots.registry import Plot, Scales, Sheet

OWN_SCALES = "each panel has its own scale"
SAME_SCALE = "all panels have one scale"
BESIDE_A_BAR = 2.2  # inches for the name of a map that may have a colour bar of its own


@dataclass(frozen=True)
class Limits:
    """The two ends of a colour scale, and its colours."""

    low: float
    high: float
    colours: str

    @classmethod
    def of(cls, maps: Sequence[Tensor], *, signed: bool = True) -> Limits:
        """Limits that hold all finite numbers; symmetric about zero where they are signed."""
        finite = torch.cat([values[values.isfinite()].double().flatten() for values in maps])
        if signed:
            size = float(f"{float(finite.abs().max()):.6g}") if len(finite) else 1.0  # 1 and 1.0000001 are one scale
            return cls(-(size or 1.0), size or 1.0, SIGNED)
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
        return cls(low, high if high > low else low + 1.0, MAGNITUDES)


def limits_of(scales: Scales, count: int, key: str, *, signed: bool = True) -> list[Limits]:
    """The limits of each of ``count`` sheets, from the numbers that they call ``key``."""
    return [Limits.of([sheet.numbers[key] for sheet in scales.of(n)], signed=signed) for n in range(count)]


def say_scale(figure: Any, scales: Scales, panels: int, limits: Sequence[Limits] = ()) -> None:
    """Say in the heading whether panels have scales of their own, where there is more than one panel."""
    if panels > 1:
        said = SAME_SCALE if scales.same or len(set(limits)) == 1 else OWN_SCALES
        figure.suptitle("\n".join(filter(None, [figure.get_suptitle(), said])))


class Maps(Plot):
    """Base of plots with one map per scheme, by default of queries (down) and keys (across).

    Class attributes:
        key: what `numbers` calls the map.
        unit: name of the colour bar.
        signed: whether the numbers are signed.
        square: whether cells are.
        axis_names: of x and y.
        sizes: of a panel that is alone, and of one beside others; inches.
    """

    key: ClassVar[str] = ""
    unit: ClassVar[str] = ""
    signed: ClassVar[bool] = True
    square: ClassVar[bool] = True
    axis_names: ClassVar[tuple[str, str]] = "key position (tokens)", "query position (tokens)"
    sizes: ClassVar[tuple[tuple[float, float], ...]] = (4.6, 3.9), (3.2, 3.0)

    def draw(self, figure: Any, sheets: Sequence[Sheet], scales: Scales) -> None:
        """Draw one map per scheme."""
        grid = self.panels(figure, sheets)
        limits, images = limits_of(scales, len(sheets), self.key, signed=self.signed), []
        for axes, sheet, limit in zip(grid, sheets, limits, strict=True):
            start = self.start(sheet)
            images.append(heat_map(axes, sheet.numbers[self.key], limit, start=start, square=self.square))
            self.mark(axes, sheet)
        bars = colour_bars(figure, grid, images, self.unit)
        say_scale(figure, scales, len(grid), limits)
        self.mark_bars(bars, sheets)

    def panels(self, figure: Any, sheets: Sequence[Sheet]) -> list[Any]:
        """One panel per scheme, named, with room for a colour bar."""
        size = self.sizes[len(sheets) > 1]
        return sheet_panels(figure, sheets, size, self.axis_names, room=BESIDE_A_BAR)

    def start(self, sheet: Sheet) -> tuple[float, float]:
        """The first index down and across."""
        return 0, 0

    def mark(self, axes: Any, sheet: Sheet) -> None:
        """Anything else on a map."""

    def mark_bars(self, bars: Sequence[Any], sheets: Sequence[Sheet]) -> None:
        """Anything else on the colour bars."""


def colour_bars(figure: Any, panels: Sequence[Any], images: Sequence[Any], label: str) -> list[Any]:
    """One colour bar for all panels, or one for each where their scales differ."""
    if len({image.get_clim() for image in images}) == 1:
        return [figure.colorbar(images[-1], ax=list(panels), label=label, shrink=0.85)]
    return [figure.colorbar(i, ax=axes, label=label, shrink=0.85) for i, axes in zip(images, panels, strict=True)]


def heat_map(
    axes: Any, values: Tensor, limits: Limits, *, start: tuple[float, float] = (0, 0), square: bool = True
) -> Any:
    """``values [down, across]`` as coloured cells, the first at ``start`` (down, across); grey where NaN."""
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


Line = tuple[str, Tensor, Tensor]
"""Name of a line, x and y."""


class Lines(Plot):
    """Base of plots with one panel per scheme, and some lines in each.

    Class attributes:
        axis_names: of x and y.
        widths: of a panel that is alone, and of one beside others; inches.
        height: of a panel, inches.
        tapered: whether earlier lines are wider, so that coinciding ones are all seen.
    """

    axis_names: ClassVar[tuple[str, str]]
    widths: ClassVar[tuple[float, float]] = 6.8, 3.6
    height: ClassVar[float] = 3.0
    tapered: ClassVar[bool] = True

    def draw(self, figure: Any, sheets: Sequence[Sheet], scales: Scales) -> None:
        """Draw one panel of lines per scheme."""
        size, shared = (self.widths[len(sheets) > 1], self.height), scales.same or not self.scaled
        grid = sheet_panels(figure, sheets, size, self.axis_names, sharey=shared)
        for axes, sheet in zip(grid, sheets, strict=True):
            found = list(self.lines(sheet.numbers))
            for number, (name, x, y) in enumerate(found):
                curve(axes, x, y, name, number, len(found), tapered=self.tapered)
            self.mark(axes)
            plain(axes)
        if self.scaled:
            say_scale(figure, scales, len(grid))
        legend(figure, *grid)

    @abstractmethod
    def lines(self, numbers: Mapping[str, Any]) -> Iterable[Line]:
        """The lines of a scheme."""

    def mark(self, axes: Any) -> None:
        """Anything else in a panel."""
