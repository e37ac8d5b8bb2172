"""Plots of biases: of the score of each pair, per head, and of the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hf_posenc.insight.plots import marks, pair_scores
from hf_posenc.insight.plots.registry import (
    Plot,
    Sheet,
    View,
    register_plot,
)
from hf_posenc.insight.plots.target import Target, position_range

MOST_HEADS = 8


@register_plot
class Bias(Plot):
    """Bias that each head adds to the score of each pair."""

    name, title = "bias", "Bias of each pair, head by head"
    hooks = ("bias",)
    trained_length = 64

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        bias = pair_scores.pairs_of(target, view.length or self.length(target), view.vectors).bias()
        heads = view.heads(len(bias), MOST_HEADS)
        return {"heads": heads, "bias": bias[heads]}

    def draw(self, figure: Any, sheets: Sequence[Sheet], scale_sheets: Sequence[Sheet]) -> None:
        limits, images = marks.scales(sheets, scale_sheets, "bias"), []
        cells = [(n, head_index) for n, sheet in enumerate(sheets) for head_index in range(len(sheet.numbers["heads"]))]
        most = max(len(sheet.numbers["heads"]) for sheet in sheets)
        across = marks.columns(len(cells)) if most == 1 else min(4, most)
        side = {1: 4.0, 2: 3.1, 3: 2.8}.get(across, 2.15)
        room = 0.4 if len(cells) <= across else -0.1  # names of the axes are under the last row only
        grid = marks.panels(figure, len(cells), side, side + room, across=across, sharex=True, sharey=True)
        for number, (axes, (which, head_index)) in enumerate(zip(grid, cells, strict=True)):
            sheet = sheets[which]
            images.append(marks.heat_map(axes, sheet.numbers["bias"][head_index], limits[which]))
            head = f", head {sheet.numbers['heads'][head_index]}"
            axes.set_title(
                marks.shortened(sheet.label, 22 - len(head) + 2 * (4 - across)) + head, loc="left", fontsize=9
            )
            if number + across >= len(cells):
                axes.set_xlabel("key position (tokens)", fontsize=8.5)
            if number % across == 0:
                axes.set_ylabel("query position (tokens)", fontsize=8.5)
        marks.colour_bars(figure, grid, images, "added to the score")


@register_plot
class BiasCurve(Plot):
    """Bias against distance, one curve per head, for the last query."""

    name, title = "bias_curve", "Bias against distance, head by head"
    hooks = ("bias",)
    trained_length = 128

    def is_informative(self, target: Target) -> bool:
        return False

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        bias = pair_scores.pairs_of(target, view.length or self.length(target), view.vectors).bias()
        heads = view.heads(len(bias), MOST_HEADS)
        curves = pair_scores.of_last_row(bias[heads])
        return {"distance": torch.arange(curves.shape[1]), "heads": heads, "bias": curves}

    def draw(self, figure: Any, sheets: Sequence[Sheet], scale_sheets: Sequence[Sheet]) -> None:
        grid = marks.panels(figure, len(sheets), 6.8 if len(sheets) == 1 else 3.6, 3.0, sharex=True, sharey=True)
        for number, (axes, sheet) in enumerate(zip(grid, sheets, strict=True)):
            for line, head in enumerate(sheet.numbers["heads"]):
                values = sheet.numbers["bias"][line]
                marks.curve(axes, sheet.numbers["distance"], values, f"head {head}", line, marked=False)
            marks.plain(axes)
            axes.set_title(marks.shortened(sheet.label), loc="left", fontsize=10)
            axes.set_xlabel("distance (tokens)")
            if number % marks.columns(len(sheets)) == 0:
                axes.set_ylabel("added to the score")
        marks.legend(figure, *grid)


@register_plot
class Values(Plot):
    """Bias of a key's value, by its distance from the last query."""

    name, title = "values", "Added to the value of a key, by distance"
    hooks = ("values",)
    trained_length = 64

    def shows(self, target: Target) -> bool:
        return target.has("values") and target.scheme.values(target.context(position_range(1))) is not None

    def is_informative(self, target: Target) -> bool:
        return False

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        found = pair_scores.pairs_of(target, view.length or self.length(target), view.vectors)
        return {"values": found.value_rows(found.length - 1).flip(0)}

    def draw(self, figure: Any, sheets: Sequence[Sheet], scale_sheets: Sequence[Sheet]) -> None:
        limits, images = marks.scales(sheets, scale_sheets, "values"), []
        grid = marks.panels(figure, len(sheets), 5.0 if len(sheets) == 1 else 3.4, 3.3)
        for axes, sheet, scale in zip(grid, sheets, limits, strict=True):
            images.append(marks.heat_map(axes, sheet.numbers["values"], scale, square=False))
            axes.set_title(marks.shortened(sheet.label), loc="left", fontsize=10)
            axes.set_xlabel("channel")
            axes.set_ylabel("distance (tokens)")
        marks.colour_bars(figure, grid, images, "added to the value")
