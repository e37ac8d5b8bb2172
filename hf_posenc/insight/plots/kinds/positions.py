"""Plots of positions: those of tokens in training, the distance of each pair under a remap, and visibility."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from hf_posenc.core.plotting.figures import MAGNITUDES
from hf_posenc.insight.plots import colour_scales, marks, pair_scores
from hf_posenc.insight.plots import marks as drawing
from hf_posenc.insight.plots.colour_scales import Line, Lines, Maps
from hf_posenc.insight.plots.registry import (
    Plot,
    Scales,
    Sheet,
    Target,
    View,
    register_plot,
)


@register_plot
class Places(Lines):
    """Positions of the tokens of a text in training, under position sampling."""

    name, title = "places", "Where training puts the tokens of a text"
    hooks, trained_length, factor = ("reposition",), 64, 4.0
    scaled, tapered = False, False
    axis_names, height = ("token", "position it is given (tokens)"), 2.9

    def length(self, target: Target) -> int:
        return target.geometry.trained_length

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        length = view.length or self.length(target)
        return {"places": torch.stack([pair_scores.training_positions(target, length) for _ in range(3)])}

    def lines(self, numbers: Mapping[str, Any]) -> Iterable[Line]:
        for text, where in enumerate(numbers["places"], 1):
            yield f"text {text}", torch.arange(len(where)), where

    def mark(self, axes: Any) -> None:
        axes.axline((0, 0), slope=1, color=drawing.ink(), alpha=0.4, linewidth=0.8)


@register_plot
class Distance(Maps):
    """The distance at which attention sees each pair, under a remap."""

    name, title = "distance", "Distance at which each pair is seen"
    key, unit, signed = "distance", "distance in use (tokens)", False
    hooks, companions = ("regions",), ("rotation", "row_rotation", "bias", "visible")
    factor, sweep = 4.0, "factor"

    def shows(self, target: Target) -> bool:
        return pair_scores.remaps(target)

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        distance = pair_scores.pairs_of(target, view.length or self.length(target)).distances()
        return {"distance": distance, "trained_length": target.geometry.trained_length}

    def mark_bars(self, bars: Sequence[Any], sheets: Sequence[Sheet]) -> None:
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
    scaled = False
    hooks, companions = ("visible", "regions"), ("rotation", "row_rotation", "bias")
    factor, sweep = 4.0, "factor"

    def is_informative(self, target: Target) -> bool:
        return any(part.chooses_keys for part in target.scheme.schemes)

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        found = pair_scores.pairs_of(target, view.length or self.length(target))
        region, distance, own = found.regions(), found.distances(), own_distances(found.length)
        count = 1 + int(torch.nan_to_num(region).max())
        return {
            "region": region, "keys_seen": found.seen().sum(1),
            "keeps_distance": [torch.equal(distance[region == n], own[region == n]) for n in range(count)],
        }  # fmt: skip

    def draw(self, figure: Any, sheets: Sequence[Sheet], scales: Scales) -> None:
        from matplotlib.colors import ListedColormap, to_rgba
        from matplotlib.patches import Patch

        names = region_names([sheet.numbers["keeps_distance"] for sheet in scales.every])
        hues = [HUES[n % len(HUES)] for n in range(len(names))]
        colours = ListedColormap(hues).with_extremes(bad=to_rgba(drawing.ink(), drawing.FAINT))
        for axes, sheet in zip(self.panels(figure, sheets), sheets, strict=True):
            limits = colour_scales.Limits(-0.5, len(names) - 0.5, MAGNITUDES)
            colour_scales.heat_map(axes, sheet.numbers["region"], limits).set_cmap(colours)
        patches = [Patch(facecolor=hue, label=name) for hue, name in zip(hues, names, strict=True)]
        patches.append(Patch(facecolor=(*to_rgba(drawing.ink())[:3], drawing.FAINT), label="masked"))
        longest = max(len(name) for name in names)
        across = max(1, min(len(patches), int(12 * figure.get_figwidth()) // (7 + longest)))
        figure.legend(handles=patches, loc="outside lower left", ncols=across, frameon=False)


NAMES = {frozenset({True}): "true distance", frozenset({False}): "changed distance"}
HUES = tuple(drawing.HUES[n] for n in (4, 0, 2, 5, 1, 3))


def own_distances(length: int) -> torch.Tensor:
    """Query minus key position of each pair, ``[query, key]``, float64."""
    place = torch.arange(length, dtype=torch.float64)
    return place[:, None] - place


def region_names(keeps: Sequence[Sequence[bool]]) -> list[str]:
    """Name each region of pairs by what the schemes that have it do to the distances in it.

    Args:
        keeps: of each scheme, whether each of its regions leaves all distances as they are.
    """
    count = max(map(len, keeps))
    if count == 1:
        return ["visible"]
    names = []
    for number in range(count):
        found = {one[number] for one in keeps if number < len(one)}
        what = NAMES.get(frozenset(found), "true or changed distance")
        names.append(f"visible, {what} (region {number + 1})")
    return names


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
