"""Plots of positions in training and of pairs: their distance under a remap, their visibility and their biases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hf_posenc.insight.plots import marks, pair_scores
from hf_posenc.insight.plots.bases import Line, Lines, Maps, heat_map
from hf_posenc.insight.plots.registry import Sheet, Target, View, position_range, register_plot


@register_plot
class Places(Lines):
    """Positions of the tokens of a text in training, under position sampling."""

    name, title = "places", "Where training puts the tokens of a text"
    hooks, trained_length, factor = ("reposition",), 64, 4.0
    tapered = False
    axis_names = "token", "position it is given (tokens)"

    def length(self, target: Target) -> int:
        return target.geometry.trained_length

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        positions = position_range(view.length or self.length(target))
        texts = [target.scheme.reposition(positions, training=True)[0] for _ in range(3)]
        return {"places": torch.stack(texts).double()}

    def lines(self, numbers: Mapping[str, Any]) -> Iterable[Line]:
        for text, positions in enumerate(numbers["places"], 1):
            yield f"text {text}", torch.arange(len(positions)), positions

    def mark(self, axes: Any, sheets: Sequence[Sheet]) -> None:
        axes.axline((0, 0), slope=1, color=marks.INK, alpha=0.4, linewidth=0.8)


@register_plot
class Distance(Maps):
    """Distance that attention uses for each query and key, under a remap."""

    name, title = "distance", "Distance in use between each query and key"
    key, unit, signed = "distance", "distance in use (tokens)", False
    hooks, companions = ("regions",), ("rotation", "row_rotation", "bias", "visible")
    factor = 4.0

    def shows(self, target: Target) -> bool:
        return pair_scores.remaps(target)

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        distance = pair_scores.distances(pair_scores.call_of(target, view.length or self.length(target)))[0, 0]
        return {"distance": distance, "trained_length": target.geometry.trained_length}


@register_plot
class Visible(Maps):
    """Visible keys of each query, and whether their distance is remapped."""

    name, title = "visible", "Visible keys of each query"
    hooks, companions = ("visible", "regions"), ("rotation", "row_rotation", "bias")
    factor = 4.0

    def shows(self, target: Target) -> bool:
        return any(part.chooses_keys for part in target.scheme.schemes)

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        call = pair_scores.call_of(target, view.length or self.length(target))
        distance = pair_scores.distances(call)[0, 0]
        own = call.ctx.query_positions[0, :, None] - call.ctx.key_positions[0].double()
        return {"changed": (distance != own).double().masked_fill(distance.isnan(), torch.nan)}

    def draw(self, figure: Any, sheets: Sequence[Sheet]) -> None:
        from matplotlib.colors import ListedColormap, to_rgba
        from matplotlib.patches import Patch

        true, changed = marks.HUES[4], marks.HUES[0]
        for axes, sheet in zip(self.panels(figure, sheets), sheets, strict=True):
            heat_map(axes, sheet.numbers["changed"], (-0.5, 1.5), ListedColormap((true, changed)))
        names = "visible, true distance", "visible, changed distance", "masked"
        hues: list[Any] = [true, changed, to_rgba(marks.INK, marks.FAINT)]
        marks.legend_of(figure, {name: Patch(facecolor=hue) for name, hue in zip(names, hues, strict=True)})


MOST_MAPS, MOST_CURVES = 4, 8  # heads


def biases(target: Target, length: int) -> Tensor:
    """Return what biases add to the score of each pair, ``[heads, query, key]``."""
    return pair_scores.added(pair_scores.call_of(target, length))[0]


@register_plot
class Bias(Maps):
    """Bias that each head adds to the score of each pair."""

    name, title = "bias", "Bias of each query and key, head by head"
    key, unit = "bias", "added to the score"
    hooks = ("bias",)
    options = ("length", "head")
    trained_length = 64

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        bias = biases(target, view.length or self.length(target))
        if view.head is None and len(bias) > 1 and bias.allclose(bias[:1], equal_nan=True):
            return {"heads": [f"0–{len(bias) - 1}"], "bias": bias[:1]}
        heads = list(range(min(MOST_MAPS, len(bias)))) if view.head is None else view.heads(len(bias), 1)
        return {"heads": heads, "bias": bias[heads]}

    def draw(self, figure: Any, sheets: Sequence[Sheet]) -> None:
        by_head = [
            Sheet(sheet.label, {"head": head, "bias": bias})
            for sheet in sheets
            for head, bias in zip(sheet.numbers["heads"], sheet.numbers["bias"], strict=True)
        ]
        super().draw(figure, by_head)


@register_plot
class BiasCurve(Lines):
    """Bias against distance, one curve per head, for the last query."""

    name, title = "bias_curve", "Bias against distance, head by head"
    hooks = ("bias",)
    options = ("length", "head")
    trained_length = 128
    axis_names = "distance (tokens)", "added to the score"

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        bias = biases(target, view.length or self.length(target))
        heads = view.heads(len(bias), MOST_CURVES)
        curves = pair_scores.of_last_row(bias[heads])
        return {"distance": torch.arange(curves.shape[1]), "heads": heads, "bias": curves}

    def lines(self, numbers: Mapping[str, Any]) -> Iterable[Line]:
        for line, head in enumerate(numbers["heads"]):
            yield f"head {head}", numbers["distance"], numbers["bias"][line]
