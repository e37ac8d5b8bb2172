"""Plots of positions: those of tokens in training, the distance of each pair under a remap, and visibility."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hf_posenc.insight.plots import marks as drawing
from hf_posenc.insight.plots import pair_scores
from hf_posenc.insight.plots.registry import (
    Plot,
    Sheet,
    View,
    register_plot,
)
from hf_posenc.insight.plots.target import Target


@register_plot
class Places(Plot):
    """Positions of the tokens of a text in training, under position sampling."""

    name, title = "places", "Where training puts the tokens of a text"
    hooks, trained_length, factor = ("reposition",), 64, 4.0

    def length(self, target: Target) -> int:
        return target.geometry.trained_length

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        length = view.length or self.length(target)
        return {"places": torch.stack([pair_scores.training_positions(target, length) for _ in range(3)])}

    def draw(self, figure: Any, sheets: Sequence[Sheet], scale_sheets: Sequence[Sheet]) -> None:
        grid = drawing.panels(figure, len(sheets), 6.2 if len(sheets) == 1 else 3.5, 2.9, sharex=True, sharey=True)
        for number, (axes, sheet) in enumerate(zip(grid, sheets, strict=True)):
            for draw, where in enumerate(sheet.numbers["places"]):
                drawing.curve(axes, torch.arange(len(where)), where, f"text {draw + 1}", draw, marked=False)
            axes.axline((0, 0), slope=1, color=drawing.ink(), alpha=0.4, linewidth=0.8)
            drawing.plain(axes)
            axes.set_title(drawing.shortened(sheet.label), loc="left", fontsize=10)
            axes.set_xlabel("token")
            if number % drawing.columns(len(sheets)) == 0:
                axes.set_ylabel("position it is given (tokens)")
        drawing.legend(figure, *grid)


class Maps(Plot):
    """Base: one map of queries × keys per scheme, all on one colour scale."""

    key = ""
    unit = ""

    def draw(self, figure: Any, sheets: Sequence[Sheet], scale_sheets: Sequence[Sheet]) -> None:
        limits, images = drawing.scales(sheets, scale_sheets, self.key), []
        grid = map_panels(figure, sheets)
        for number, (axes, sheet) in enumerate(zip(grid, sheets, strict=True)):
            images.append(drawing.heat_map(axes, sheet.numbers[self.key], limits[number]))
        self.mark(drawing.colour_bars(figure, grid, images, self.unit), sheets)

    def mark(self, bars: Sequence[Any], sheets: Sequence[Sheet]) -> None:
        """Anything else on the colour bars."""


def map_panels(figure: Any, sheets: Sequence[Sheet]) -> list[Any]:
    """One panel per scheme, named, keys across and queries down."""
    alone = len(sheets) == 1
    grid = drawing.panels(figure, len(sheets), 4.6 if alone else 3.2, 3.9 if alone else 3.0)
    for number, (axes, sheet) in enumerate(zip(grid, sheets, strict=True)):
        axes.set_title(drawing.shortened(sheet.label), loc="left", fontsize=10)
        axes.set_xlabel("key position (tokens)")
        if number % drawing.columns(len(sheets)) == 0:
            axes.set_ylabel("query position (tokens)")
    return grid


@register_plot
class Distance(Maps):
    """The distance at which attention sees each pair, under a remap."""

    name, title = "distance", "Distance at which each pair is seen"
    key, unit = "distance", "distance in use (tokens)"
    hooks, companions = ("regions",), ("rotation", "row_rotation", "bias", "visible")
    factor, sweep = 4.0, "factor"

    def shows(self, target: Target) -> bool:
        return pair_scores.remaps(target)

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        distance = pair_scores.pairs_of(target, view.length or self.length(target)).distances()
        return {"distance": distance, "trained_length": target.geometry.trained_length}

    def mark(self, bars: Sequence[Any], sheets: Sequence[Sheet]) -> None:
        trained = sheets[0].numbers["trained_length"]
        for bar in bars:
            if bar.vmin < trained < bar.vmax:
                bar.ax.axhline(trained, color=drawing.HUES[3], linewidth=2)
                bar.set_label(f"{self.unit}; line: trained length")


@register_plot
class Visible(Maps):
    """Visibility of each pair, and its region."""

    name, title = "visible", "Visible keys of each query"
    key = "region"
    hooks, companions = ("visible", "regions"), ("rotation", "row_rotation", "bias")
    factor, sweep = 4.0, "factor"

    def is_informative(self, target: Target) -> bool:
        return any(part.chooses_keys for part in target.scheme.schemes)

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        found = pair_scores.pairs_of(target, view.length or self.length(target))
        return {"region": found.regions(), "keys_seen": found.seen().sum(1)}

    def draw(self, figure: Any, sheets: Sequence[Sheet], scale_sheets: Sequence[Sheet]) -> None:
        from matplotlib.colors import ListedColormap, to_rgba
        from matplotlib.patches import Patch

        count = 1 + int(max(torch.nan_to_num(sheet.numbers["region"]).max() for sheet in scale_sheets))
        request = (drawing.HUES[4], drawing.HUES[0], drawing.HUES[2], drawing.HUES[5], drawing.HUES[1], drawing.HUES[3])
        hues = [request[n % len(request)] for n in range(count)]
        colours = ListedColormap(hues).with_extremes(bad=to_rgba(drawing.ink(), drawing.FAINT))
        for axes, sheet in zip(map_panels(figure, sheets), sheets, strict=True):
            scale = drawing.Limits(-0.5, count - 0.5, "cividis")
            drawing.heat_map(axes, sheet.numbers["region"], scale).set_cmap(colours)
        names = ["visible"] if count == 1 else [f"visible, region {n + 1}" for n in range(count)]
        marks = [Patch(facecolor=hue, label=name) for hue, name in zip(hues, names, strict=True)]
        marks.append(Patch(facecolor=(*to_rgba(drawing.ink())[:3], drawing.FAINT), label="masked"))
        figure.legend(handles=marks, loc="outside lower left", ncols=min(4, len(marks)), frameon=False)
