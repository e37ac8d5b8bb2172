"""Plot of one code among all: the map of codes with one position framed, and its channels as bars; to be animated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.plots import codes, colour_scales, marks
from hf_posenc.insight.plots.kinds.codes import OfCodes
from hf_posenc.insight.plots.registry import Scales, Sheet, View, register_plot
from hf_posenc.insight.plots.target import Target

LENGTH = 32
MOST_CHANNELS = 32


@register_plot
class CodeAt(OfCodes):
    """The code of one position as bars, beside the codes of all."""

    name, title = "code_at", "Code of one position, among those of all"
    sweep = "position"

    def is_informative(self, target: Target) -> bool:
        return False

    def length(self, target: Target) -> int:
        return LENGTH

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        length = view.length or LENGTH
        position = min(5, length - 1) if view.position is None else view.position
        if position >= length:
            raise OptionOutOfRange(
                f"position must be among 0 … {length - 1}, got {position}. Ask for a greater length."
            )
        code = codes.codes(target, length)
        channels = view.chosen(code.shape[1], range(min(MOST_CHANNELS, code.shape[1])))
        return {"position": position, "channels": channels, "code": code[:, channels]}

    def draw(self, figure: Any, sheets: Sequence[Sheet], scales: Scales) -> None:
        limits, images = colour_scales.limits_of(scales, len(sheets), "code"), []
        grid = marks.panels(figure, 2 * len(sheets), 3.6, 2.6, across=2)
        for number, sheet in enumerate(sheets):
            position, code, channels = (sheet.numbers[name] for name in ("position", "code", "channels"))
            whole, single = grid[2 * number : 2 * number + 2]
            images.append(colour_scales.heat_map(whole, code, limits[number], square=False))
            for edge in (position - 0.5, position + 0.5):
                whole.axhline(edge, color=marks.ink(), linewidth=1.3)
            whole.set_title(marks.named(sheet.label, 3.6), loc="left", fontsize=10)
            whole.set_xlabel("channel")
            whole.set_ylabel("position (tokens)")
            hues = images[-1].cmap(images[-1].norm(code[position].double().numpy()))
            single.bar(range(len(channels)), code[position].tolist(), color=hues, edgecolor=marks.ink(), linewidth=0.5)
            single.set_ylim(1.05 * limits[number].low, 1.05 * limits[number].high)
            marks.plain(single)
            single.axhline(0, color=marks.ink(), linewidth=0.8)
            single.locator_params(axis="x", integer=True)
            single.set_title(f"position {position}", loc="left", fontsize=10)
            single.set_xlabel("channel")
            single.set_ylabel("value")
        if len(sheets) > 1:
            figure.suptitle(colour_scales.SAME_SCALE if scales.same else "each scheme has its own scale")
