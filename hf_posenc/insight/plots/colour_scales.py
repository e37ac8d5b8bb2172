"""Colour scales of maps. One rule for all plots:

    signed numbers (codes, scores, biases, changes)   purple below zero, white at zero, orange above
    magnitudes (distances, shares)                    dark blue to yellow (cividis)
    every panel has a scale of its own, which ends at its largest absolute value; with --same-scale all have one

The frames of an animation share the scale of their panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.plotting.figures import MAGNITUDES, SIGNED
from hf_posenc.insight.plots.marks import FAINT, ink
from hf_posenc.insight.plots.registry import Scales, Sheet

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


def draw_maps(
    figure: Any,
    grid: Sequence[Any],
    sheets: Sequence[Sheet],
    scales: Scales,
    key: str,
    unit: str,
    *,
    signed: bool = True,
    starts: Sequence[tuple[int, int]] | None = None,
    square: bool = True,
) -> list[Any]:
    """Draw what sheets call ``key`` as one map in each panel of a grid; returns the colour bars.

    Args:
        figure: of the panels.
        grid: a panel for each sheet.
        sheets, scales: as a plot is given them.
        key: of the numbers.
        unit: name of the colour bars.
        signed: whether the numbers are signed.
        starts: of each sheet, the first index down and across.
        square: whether cells are.
    """
    limits, images = limits_of(scales, len(sheets), key, signed=signed), []
    for axes, sheet, limit, start in zip(grid, sheets, limits, starts or [(0, 0)] * len(sheets), strict=True):
        images.append(heat_map(axes, sheet.numbers[key], limit, start=start, square=square))
    bars = colour_bars(figure, grid, images, unit)
    say_scale(figure, scales, len(grid), limits)
    return bars


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
