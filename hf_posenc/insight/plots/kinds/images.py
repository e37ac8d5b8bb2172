"""Plots of schemes with several coordinates: attention of one patch of an image to the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_posenc.insight.plots import colour_scales, marks, pair_scores
from hf_posenc.insight.plots.registry import (
    Plot,
    Scales,
    Sheet,
    View,
    register_plot,
)
from hf_posenc.insight.plots.target import Target

SIDE = 15


@register_plot
class Grid(Plot):
    """Score of the middle patch of an image with every other; a one-dimensional scheme numbers patches line by line."""

    name, title = "grid", "Score of the middle patch of an image with all others"
    trained_length = SIDE * SIDE
    companions = ("rotation", "row_rotation", "bias")

    def shows(self, target: Target) -> bool:
        return getattr(target.scheme.rotation(), "axes", None) is not None

    def length(self, target: Target) -> int:
        return SIDE * SIDE

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        side = max(1, round((view.length or SIDE * SIDE) ** 0.5))
        middle = side // 2
        return {"row": middle, "column": middle, "score": pair_scores.patch_scores(target, side, side, middle, middle)}

    def draw(self, figure: Any, sheets: Sequence[Sheet], scales: Scales) -> None:
        room = colour_scales.BESIDE_A_BAR
        grid = marks.sheet_panels(figure, sheets, 3.3, 3.3, "column (patches)", "row (patches)", room=room)
        colour_scales.draw_maps(figure, grid, sheets, scales, "score", "score with the patch at ×")
        for axes, sheet in zip(grid, sheets, strict=True):
            axes.plot(sheet.numbers["column"], sheet.numbers["row"], "x", color=marks.HUES[4], markersize=6)
