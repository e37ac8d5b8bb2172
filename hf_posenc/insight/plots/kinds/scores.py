"""Plots of total scores, as maps (of a text, of an image) and against distance, and of the factors of whole rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hf_posenc.insight.plots import codes, colour_scales, marks, pair_scores
from hf_posenc.insight.plots.colour_scales import Maps
from hf_posenc.insight.plots.kinds.positions import Distance
from hf_posenc.insight.plots.registry import (
    Plot,
    Scales,
    Sheet,
    Target,
    View,
    register_plot,
)

SIDE = 15  # patches of an image
OF_SCORES = ("rotation", "row_rotation", "bias", "regions", "visible", "query_scale", "row_scale")


def score_map(target: Target, length: int, view: View) -> dict[str, Any]:
    """Scores of a head, or of the codes with each other where the scheme only has these, ``[query, key]``.

    The head is named where heads differ.
    """
    if not target.has(*OF_SCORES) and codes.has_code(target):
        return {"score": codes.gram(target, length)}
    scores = pair_scores.pairs_of(target, length, view.vectors).scores()
    head = view.heads(len(scores), 1)[0]
    differ = not scores.allclose(scores[:1], equal_nan=True)
    return {"score": scores[head]} | ({"head": head} if differ else {})


@register_plot
class ScoreMap(Maps):
    """The score of each pair of identical tokens."""

    name, title = "score", "Score of each pair where only position differs"
    key, unit = "score", "score"
    options = ("length", "head", "vectors")
    companions = OF_SCORES
    trained_length, factor, sweep = 32, 4.0, "factor"

    def shows(self, target: Target) -> bool:
        return True  # also of a scheme without positions, whose scores are all the same

    def is_informative(self, target: Target) -> bool:
        return False

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        return score_map(target, view.length or self.length(target), view)


class Curves(Plot):
    """Base: one curve per scheme over the distance from the last query to each key.

    All are on one pair of axes, unless one of them would look flat there; then each scheme has its own.
    """

    key = ""
    unit = ""

    def draw(self, figure: Any, sheets: Sequence[Sheet], scales: Scales) -> None:
        together = scales.same or marks.comparable([sheet.numbers[self.key] for sheet in scales.every])
        if together:
            axes = marks.one_pair_of_axes(figure)
            self.curves(axes, sheets, Scales(scales.frames, same=True))
            marks.only(axes, sheets)
            marks.legend(figure, axes)
            return
        grid = marks.panels(figure, len(sheets), 3.6, 3.0)
        for number, (axes, sheet) in enumerate(zip(grid, sheets, strict=True)):
            self.curves(axes, [sheet], Scales([[one] for one in scales.of(number)]))
            axes.set_title(marks.named(marks.labelled(sheet), 3.6), loc="left", fontsize=10)
        colour_scales.say_scale(figure, scales, len(grid))

    def curves(self, axes: Any, sheets: Sequence[Sheet], scales: Scales) -> None:
        """Draw the curves of some sheets on one pair of axes."""
        for number, sheet in enumerate(sheets):
            values = sheet.numbers[self.key]
            marks.curve(axes, sheet.numbers["distance"], values, marks.labelled(sheet), number, len(sheets))
        every = torch.cat([sheet.numbers[self.key].double() for sheet in scales.every])
        low, high = float(every[every.isfinite()].min()), float(every[every.isfinite()].max())
        room = 0.05 * (high - low or 1.0)
        axes.set_ylim(low - room, high + room)
        marks.plain(axes)
        axes.set_xlabel("distance from query to key (tokens)")
        axes.set_ylabel(self.unit)
        self.mark(axes, sheets)

    def mark(self, axes: Any, sheets: Sequence[Sheet]) -> None:
        """Anything else on the axes."""


@register_plot
class ScoreCurve(Curves):
    """The same against distance, for the last query."""

    name, title = "score_curve", "Score against distance where only position differs"
    key, unit = "score", "score"
    options = ("length", "head", "vectors")
    companions = OF_SCORES
    trained_length, factor, sweep = 128, 4.0, "factor"

    def shows(self, target: Target) -> bool:
        return True  # also of a scheme without positions, whose scores are all the same

    def is_informative(self, target: Target) -> bool:
        return False

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        found = score_map(target, view.length or self.length(target), view)
        score = pair_scores.of_last_row(found["score"])
        return found | {"distance": torch.arange(len(score)), "score": score}


@register_plot
class DistanceCurve(Curves):
    """The distance in use against the true one, for the last query."""

    name, title = "distance_curve", "Distance in use against the true one"
    key, unit = "used", "distance in use (tokens)"
    hooks, companions = Distance.hooks, Distance.companions
    factor, sweep = 4.0, "factor"

    def shows(self, target: Target) -> bool:
        return pair_scores.remaps(target)

    def is_informative(self, target: Target) -> bool:
        return False

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        length = view.length or self.length(target)
        used = pair_scores.of_last_row(pair_scores.pairs_of(target, length).distances())
        return {"distance": torch.arange(length), "used": used, "trained_length": target.geometry.trained_length}

    def mark(self, axes: Any, sheets: Sequence[Sheet]) -> None:
        trained = sheets[0].numbers["trained_length"]
        axes.axhline(trained, color=marks.ink(), alpha=0.6, linestyle=(0, (4, 3)), linewidth=0.9)
        axes.annotate(
            "trained length", (1.0, trained), xytext=(-2, 3), xycoords=("axes fraction", "data"), ha="right",
            textcoords="offset points", fontsize=8,
        )  # fmt: skip


@register_plot
class Temperature(Curves):
    """Factor of all logits of a row."""

    name, title = "temperature", "Factor of the logits of each row"
    key, unit = "factor", "factor of its logits (×)"
    options = ("length", "head")
    hooks = ("query_scale", "row_scale")
    companions = ("rotation", "row_rotation", "bias", "regions", "visible")
    trained_length, factor, sweep = 256, 4.0, "factor"

    def shows(self, target: Target) -> bool:
        return (
            super().shows(target)
            or target.scheme.logit_scale() != 1.0
            or any(part.logit_scale() != 1.0 for part in target.scheme.schemes)
        )

    def is_informative(self, target: Target) -> bool:
        return super().shows(target)

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        factors = pair_scores.temperatures(target, view.length or self.length(target))
        head = min(view.heads(target.geometry.heads, 1)[0], len(factors) - 1)
        differ = not factors.allclose(factors[:1])
        return {"distance": torch.arange(factors.shape[1]), "factor": factors[head]} | (
            {"head": head} if differ else {}
        )

    def mark(self, axes: Any, sheets: Sequence[Sheet]) -> None:
        axes.set_xlabel("position of the query (tokens)")


@register_plot
class Grid(Maps):
    """Score of the middle patch of an image with every other; a one-dimensional scheme numbers patches line by line."""

    name, title = "grid", "Score of the middle patch of an image with all others"
    key, unit = "score", "score with the patch at ×"
    axis_names, sizes = ("column (patches)", "row (patches)"), ((3.3, 3.3), (3.3, 3.3))
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

    def mark(self, axes: Any, sheet: Sheet) -> None:
        axes.plot(sheet.numbers["column"], sheet.numbers["row"], "x", color=marks.HUES[4], markersize=6)
