"""Plots of biases: of the score of each pair, and against distance, per head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from hf_posenc.insight.plots import colour_scales, marks, pair_scores
from hf_posenc.insight.plots.colour_scales import Line, Lines
from hf_posenc.insight.plots.registry import (
    Plot,
    Scales,
    Sheet,
    View,
    register_plot,
)
from hf_posenc.insight.plots.target import Target

MOST_HEADS = 8


@register_plot
class Bias(Plot):
    """Bias that each head adds to the score of each pair."""

    name, title = "bias", "Bias of each pair, head by head"
    hooks = ("bias",)
    options = ("length", "head", "vectors")
    trained_length = 64

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        bias = pair_scores.pairs_of(target, view.length or self.length(target), view.vectors).bias()
        heads = view.heads(len(bias), MOST_HEADS)
        return {"heads": heads, "bias": bias[heads]}

    def draw(self, figure: Any, sheets: Sequence[Sheet], scales: Scales) -> None:
        cells = [(n, head_index) for n, sheet in enumerate(sheets) for head_index in range(len(sheet.numbers["heads"]))]
        most = max(len(sheet.numbers["heads"]) for sheet in sheets)
        across = marks.columns(len(cells)) if most == 1 else min(3 if most == 6 else 4, most)
        side = {1: 4.0, 2: 3.1, 3: 2.8}.get(across, 2.15)
        room = 0.75 if len(cells) <= across else 0.4  # names of the axes are under the last row only
        grid = marks.panels(figure, len(cells), side, side + room, across=across, sharex=True, sharey=True)
        for number, (axes, (which, head_index)) in enumerate(zip(grid, cells, strict=True)):
            sheet = sheets[which]
            limits = limits_of_head(scales, which, head_index)
            share = colour_scales.Limits(-1.0, 1.0, limits.colours)
            image = colour_scales.heat_map(axes, sheet.numbers["bias"][head_index] / limits.high, share)
            name = f"{sheet.label}, head {sheet.numbers['heads'][head_index]}"
            axes.set_title(f"{marks.named(name, side, 9)}\n± {limits.high:.3g}", loc="left", fontsize=9)
            if number + across >= len(cells):
                axes.set_xlabel("key position (tokens)", fontsize=8.5)
            if number % across == 0:
                axes.set_ylabel("query position (tokens)", fontsize=8.5)
        bar = figure.colorbar(image, ax=grid, label="added to the score (± above each panel)", shrink=0.85)
        colour_scales.say_scale(figure, scales, len(grid))
        bar.set_ticks([-1, 0, 1], labels=["−", "0", "+"])


def limits_of_head(scales: Scales, which: int, head_index: int) -> colour_scales.Limits:
    """The scale of one head of one scheme: its own, or that of all heads of all schemes."""
    if scales.same:
        return colour_scales.Limits.of([sheet.numbers["bias"] for sheet in scales.every])
    return colour_scales.Limits.of([sheet.numbers["bias"][head_index] for sheet in scales.of(which)])


@register_plot
class BiasCurve(Lines):
    """Bias against distance, one curve per head, for the last query."""

    name, title = "bias_curve", "Bias against distance, head by head"
    hooks = ("bias",)
    options = ("length", "head", "vectors")
    trained_length = 128
    axis_names = "distance (tokens)", "added to the score"

    def is_informative(self, target: Target) -> bool:
        return False

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        bias = pair_scores.pairs_of(target, view.length or self.length(target), view.vectors).bias()
        heads = view.heads(len(bias), MOST_HEADS)
        curves = pair_scores.of_last_row(bias[heads])
        return {"distance": torch.arange(curves.shape[1]), "heads": heads, "bias": curves}

    def lines(self, numbers: Mapping[str, Any]) -> Iterable[Line]:
        for line, head in enumerate(numbers["heads"]):
            yield f"head {head}", numbers["distance"], numbers["bias"][line]
