"""Plots of the code that every position has: as a map, as curves, and by its products."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from hf_posenc.insight.plots import codes, marks
from hf_posenc.insight.plots.bases import Line, Lines, Maps
from hf_posenc.insight.plots.registry import Plot, Sheet, Target, View, register_plot

LENGTH = 100


class OfCodes(Plot):
    """Base of plots for schemes with added or learned codes, and, together with them, for those that rotate."""

    trained_length, positions = 128, LENGTH

    def shows(self, target: Target) -> bool:
        return codes.has_code(target) and not target.has("rotation", "row_rotation")

    def accepts(self, target: Target) -> bool:
        return codes.has_code(target)


@register_plot
class CodeMap(OfCodes, Maps):
    """The code of every position as a map."""

    name, title = "code", "Code of every position (position × channel)"
    key, unit, square = "code", "value", False
    axis_names, sizes = ("channel", "position (tokens)"), ((5.6, 3.4), (3.6, 3.4))

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        return {"code": codes.codes(target, view.length or LENGTH)}


@register_plot
class Dimensions(OfCodes, Lines):
    """Single channels of the code against position."""

    name, title = "dimensions", "Single channels of the code against position"
    options = ("length", "channels")
    axis_names, tapered = ("position (tokens)", "value"), False

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        code = codes.codes(target, view.length or LENGTH)
        count = code.shape[1]
        channels = view.chosen(count, sorted({0, count // 4, count // 2}))
        return {"positions": torch.arange(len(code)), "channels": channels, "code": code[:, channels]}

    def lines(self, numbers: Mapping[str, Any]) -> Iterable[Line]:
        for line, channel in enumerate(numbers["channels"]):
            yield f"channel {channel}", numbers["positions"], numbers["code"][:, line]


@register_plot
class Product(OfCodes, Lines):
    """Inner product of two codes against their distance."""

    name, title = "product", "Inner product of two codes against their distance"
    key = "product"
    axis_names = "distance from the middle position (tokens)", "⟨code, code⟩ (1 with itself)"

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        length = view.length or LENGTH
        origin = length // 2
        return {"distance": torch.arange(length) - origin, "product": codes.products(target, length, origin)}

    def mark(self, axes: Any, sheets: Sequence[Sheet]) -> None:
        axes.axhline(0, color=marks.INK, alpha=0.4, linewidth=0.8)
        axes.axvline(0, color=marks.INK, alpha=0.4, linewidth=0.8)
