"""Plot of the position codes (embeddings)."""

from __future__ import annotations

from typing import Any

from hf_posenc.insight.plots import codes
from hf_posenc.insight.plots.bases import Maps
from hf_posenc.insight.plots.registry import Target, View, register_plot

LENGTH = 100


@register_plot
class CodeMap(Maps):
    """The code of every position as a map."""

    name, title = "code", "Code of every position (position × channel)"
    key, unit, square = "code", "value", False
    axis_names, sizes = ("channel", "position (tokens)"), ((5.6, 3.4), (3.6, 3.4))
    trained_length, positions = 128, LENGTH

    def shows(self, target: Target) -> bool:
        return codes.has_code(target) and not target.has("rotation", "row_rotation")

    def accepts(self, target: Target) -> bool:
        return codes.has_code(target)

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        return {"code": codes.codes(target, view.length or LENGTH)}
