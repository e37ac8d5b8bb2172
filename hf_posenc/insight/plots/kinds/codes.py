"""Plots of the code of every position: as a map, as clock hands, and its frequencies before and after a scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.plotting import plain
from hf_posenc.insight.plots import codes, marks
from hf_posenc.insight.plots.bases import Maps
from hf_posenc.insight.plots.registry import Plot, Sheet, Target, View, evenly, register_plot

LENGTH = 100
MOST_HANDS, ACROSS = 8, 4
TRAIL = 6  # earlier positions drawn as dots


@register_plot
class CodeMap(Maps):
    """The code of every position as a map."""

    name, title = "code", "Code of every position (position × channel)"
    key, unit, square = "code", "value", False
    axis_names, sizes = ("channel", "position (tokens)"), ((5.6, 3.4), (3.6, 3.4))
    trained_length, positions = 128, LENGTH
    companions = ("rotation", "row_rotation")

    def shows(self, target: Target) -> bool:
        return codes.has_code(target) and not target.has(*self.companions)

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        return {"code": codes.codes(target, view.length or LENGTH)}


@register_plot
class Frequencies(Plot):
    """Frequency of each pair (radians per token) as bars, before and after scaling."""

    name, title = "frequencies", "Frequency of every pair of channels (logarithmic scale)"
    hooks = ("rotation", "row_rotation")
    trained_length, factor = 4096, 4.0

    def shows(self, target: Target) -> bool:
        scaled = list(codes.frequencies(target, target.geometry.target_length).values())
        before = codes.unscaled(target)
        return any(len(after) != len(before) or not torch.allclose(after, before) for after in scaled)

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        after, geometry = codes.frequencies(target, view.length or self.length(target)), target.geometry
        return {
            "before": codes.unscaled(target), "after": after,
            "trained_length": geometry.trained_length, "target_length": geometry.target_length,
        }  # fmt: skip

    def draw(self, figure: Any, sheets: Sequence[Sheet]) -> None:
        size = 6.8 if len(sheets) == 1 else 3.7, 2.8
        names = "pair of channels", "frequency (radians per token)"
        grid = marks.sheet_panels(figure, sheets, size, names, room=3.4, sharey=True)
        every = torch.cat([f for one in sheets for f in (*one.numbers["after"].values(), one.numbers["before"])])
        bottom, top = float(every[every > 0].min()) / 3, float(every.max()) * 2
        for axes, sheet in zip(grid, sheets, strict=True):
            before, after = sheet.numbers["before"], sheet.numbers["after"]
            axes.bar(range(len(before)), before.tolist(), width=0.86, color=marks.INK, alpha=0.22, label="before")
            for part, (name, scaled) in enumerate(after.items()):
                width = 0.56 / len(after)
                x = torch.arange(len(scaled)) + (part - (len(after) - 1) / 2) * width
                colour = marks.HUES[(1, 4, 2)[part % 3]]
                axes.bar(x.tolist(), scaled.tolist(), width=width, color=colour, label=name or "after")
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.9f}".rstrip("0").rstrip("."))
            axes.set_ylim(bottom, top)
            once = 2 * math.pi / sheet.numbers["trained_length"]
            name = f"one rotation in the trained {sheet.numbers['trained_length']:,} tokens"
            axes.axhline(once, color=marks.HUES[3], linestyle=(0, (4, 3)), linewidth=1.3, label=name)
            plain(axes)
        marks.legend(figure, *grid)


@register_plot
class Clock(Plot):
    """Every pair of channels as a clock hand, upright at position 0."""

    name, title = "clock", "Pairs of channels as clock hands"
    hooks = ("rotation", "row_rotation")
    trained_length = 256
    options = ("position", "channels")

    def accepts(self, target: Target) -> bool:
        return codes.has_code(target) and codes.rotated(target, 2) is not None

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        position = TRAIL if view.position is None else view.position
        first = max(0, position - TRAIL)
        rotated = codes.rotated(target, position - first + 1, first)
        count = rotated.shape[1]  # type: ignore[union-attr]
        pairs = view.chosen(count, evenly(count, MOST_HANDS))
        a_turn = codes.rotated(target, 2)[1]  # type: ignore[index]
        return {
            "position": position, "pairs": pairs, "angles": rotated[:, pairs],  # type: ignore[index]
            "tokens_a_turn": (2 * math.pi / a_turn[pairs]),
        }  # fmt: skip

    def draw(self, figure: Any, sheets: Sequence[Sheet]) -> None:
        most = max(len(sheet.numbers["pairs"]) for sheet in sheets)
        across = min(ACROSS, most)
        each = across * math.ceil(most / across)  # dials of a scheme, in whole rows
        grid = marks.panels(figure, each * len(sheets), 1.35, 1.95, across=across)
        for row, sheet in enumerate(sheets):
            numbers, dials = sheet.numbers, grid[row * each : (row + 1) * each]
            for number, axes in enumerate(dials):
                axes.set_axis_off()
                if number < len(numbers["pairs"]):
                    dial(axes, numbers["angles"][:, number])
                    turn = float(numbers["tokens_a_turn"][number])
                    axes.set_title(f"pair {numbers['pairs'][number]}", fontsize=10, pad=2)
                    tokens = f"{turn:.1f}" if turn < 100 else f"{turn:,.0f}"
                    axes.text(0, -1.28, f"{tokens}\ntokens/rotation", ha="center", va="top", fontsize=9)
            dials[0].text(-1.45, 0, marks.named(sheet.label, 1.4), rotation=90, ha="right", va="center", fontsize=10)
        remark = f"position {sheets[0].numbers['position']}; dots: earlier positions"
        figure.suptitle(remark, fontsize=10, x=0.02, ha="left")


def dial(axes: Any, angles: Tensor) -> None:
    """Draw a clock face: the last angle as the hand, earlier angles as fading dots."""
    from matplotlib.patches import Circle

    axes.set_xlim(-1.15, 1.15)
    axes.set_ylim(-1.15, 1.15)
    axes.set_aspect("equal")
    axes.add_patch(Circle((0, 0), 1.0, fill=False, edgecolor=marks.INK, linewidth=1.0, alpha=0.6))
    for quarter in range(4):
        x, y = math.sin(quarter * math.pi / 2), math.cos(quarter * math.pi / 2)
        axes.plot((0.9 * x, x), (0.9 * y, y), color=marks.INK, linewidth=0.8, alpha=0.6)
    for steps_back, angle in enumerate(reversed(angles.tolist())):
        x, y = math.sin(angle), math.cos(angle)
        if steps_back == 0:
            axes.plot((0, 0.86 * x), (0, 0.86 * y), color=marks.HUES[3], linewidth=2.4, solid_capstyle="round")
        else:
            axes.plot(
                (0.86 * x,), (0.86 * y,), ".", color=marks.HUES[4], alpha=1 - steps_back / (TRAIL + 1), markersize=5
            )
