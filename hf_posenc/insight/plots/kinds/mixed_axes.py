"""Plot of why row and column need pairs of their own: one angle for both cannot tell the patches of a diagonal apart.

axial    pair m turns by ω_m x  or by  ω_m y           (rope_nd)
mixed    every pair turns by ω_m (x + y)               x + 1, y − 1 is the same angle
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_posenc.insight.plots import colour_scales, marks, pair_scores
from hf_posenc.insight.plots.registry import Plot, Scales, Sheet, View, register_plot
from hf_posenc.insight.plots.target import Target

SIDE = 15
SAME = 1e-5


@register_plot
class MixedAxes(Plot):
    """Scores of one patch with all others: with pairs for each axis, and with one angle for the sum of both."""

    name, title = "mixed_axes", "Row and column in pairs of their own, or summed into one angle"
    hooks = ("rotation",)
    trained_length = SIDE * SIDE

    def shows(self, target: Target) -> bool:
        return getattr(target.scheme.rotation(), "axes", None) is not None

    def is_informative(self, target: Target) -> bool:
        return False

    def length(self, target: Target) -> int:
        return SIDE * SIDE

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        side = max(1, round((view.length or SIDE * SIDE) ** 0.5))
        middle = side // 2
        axial = pair_scores.patch_scores(target, side, side, middle, middle)
        mixed = summed(target, side, middle) * float(axial[middle, middle])
        same = [int((one - one[middle, middle]).abs().lt(SAME).sum()) - 1 for one in (axial, mixed)]
        return {"middle": middle, "axial": axial, "mixed": mixed, "same_as_itself": same}

    def draw(self, figure: Any, sheets: Sequence[Sheet], scales: Scales) -> None:
        grid, images = marks.panels(figure, 2 * len(sheets), 3.7, 3.5, across=2), []
        for number, sheet in enumerate(sheets):
            maps = [sheet.numbers[name] for name in ("axial", "mixed")]
            limits = colour_scales.Limits.of(
                [one.numbers[name] for one in scales.of(number) for name in ("axial", "mixed")]
            )
            names = (f"{sheet.label}: pairs for each axis", "every pair turned by ω (x + y)")
            for axes, values, name, same in zip(
                grid[2 * number :], maps, names, sheet.numbers["same_as_itself"], strict=False
            ):
                images.append(colour_scales.heat_map(axes, values, limits))
                axes.plot(sheet.numbers["middle"], sheet.numbers["middle"], "x", color=marks.ink(), markersize=6)
                axes.set_title(f"{marks.named(name, 3.7)}\n{same} others score like × itself", loc="left", fontsize=9)
                axes.set_xlabel("column x (patches)")
                axes.set_ylabel("row y (patches)")
        colour_scales.colour_bars(figure, grid, images, "score with the patch at ×")


def summed(target: Target, side: int, middle: int) -> Tensor:
    """Mean cosine of ω_m (x + y), relative to the patch in the middle, ``[row, column]``."""
    frequencies = torch.as_tensor(target.scheme.rotation().frequencies, dtype=torch.float64)  # type: ignore[union-attr]
    place = torch.arange(side, dtype=torch.float64) - middle
    return ((place[:, None] + place)[..., None] * frequencies).cos().mean(-1)
