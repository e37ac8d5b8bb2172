"""Plots of scores, as a map and by distance, and of factors of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hf_posenc.insight.plots import codes, marks, pair_scores
from hf_posenc.insight.plots.bases import Lines, Maps
from hf_posenc.insight.plots.kinds.positions import Distance
from hf_posenc.insight.plots.registry import Plot, Sheet, Target, View, register_plot

DISTANCE = "distance from query to key (tokens)"
OF_SCORES = ("rotation", "row_rotation", "bias", "regions", "visible", "query_scale", "row_scale")


class OfScores(Plot):
    """Base of plots of scores, which every scheme has; without positions, all scores are equal."""

    key = "score"
    options = ("length", "head")
    factor, general = 4.0, True

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        """Compute the scores of one head, ``[query, key]``; for a scheme with codes only, their products.

        The result names the head if heads differ.
        """
        length = view.length or self.length(target)
        if not target.has(*OF_SCORES) and codes.has_code(target):
            return {"score": codes.gram(target, length)}
        scores = pair_scores.scores(pair_scores.call_of(target, length))[0]
        head = view.heads(len(scores), 1)[0]
        alike = scores.allclose(scores[:1], equal_nan=True)
        return {"score": scores[head]} if alike else {"score": scores[head], "head": head}


@register_plot
class ScoreMap(OfScores, Maps):
    """Score of a query and a key at every pair of positions."""

    name, title = "score", "Score of one query and key, by position"
    trained_length, unit = 32, "score"


@register_plot
class ScoreCurve(OfScores, Lines):
    """Score of a query and a key by distance, for the last query."""

    name, title = "score_curve", "Score of one query and key, by distance"
    trained_length, axis_names = 128, (DISTANCE, "score")

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        numbers = super().numbers(target, view)
        score = pair_scores.of_last_row(numbers["score"])
        return numbers | {"distance": torch.arange(len(score)), "score": score}


@register_plot
class DistanceCurve(Lines):
    """Distance in use by true distance, for the last query."""

    name, title = "distance_curve", "Distance in use against the true one"
    key, axis_names = "used", (DISTANCE, "distance in use (tokens)")
    hooks, companions = Distance.hooks, Distance.companions
    factor = 4.0

    def shows(self, target: Target) -> bool:
        return pair_scores.remaps(target)

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        length = view.length or self.length(target)
        used = pair_scores.of_last_row(pair_scores.distances(pair_scores.call_of(target, length))[0, 0])
        return {"distance": torch.arange(length), "used": used, "trained_length": target.geometry.trained_length}

    def mark(self, axes: Any, sheets: Sequence[Sheet]) -> None:
        trained = sheets[0].numbers["trained_length"]
        axes.axhline(trained, color=marks.INK, alpha=0.6, linestyle=(0, (4, 3)), linewidth=0.9)
        axes.annotate(
            "trained length", (1.0, trained), xytext=(-2, 3), xycoords=("axes fraction", "data"), ha="right",
            textcoords="offset points", fontsize=8,
        )  # fmt: skip


@register_plot
class Temperature(Lines):
    """Factor of all scores of a query, by its position."""

    name, title = "temperature", "Factor of the scores of each query"
    key, axis_names = "factor", ("position of the query (tokens)", "factor of the scores (×)")
    options = ("length", "head")
    hooks = ("query_scale", "row_scale")
    companions = ("rotation", "row_rotation", "bias", "regions", "visible")
    trained_length, factor = 256, 4.0

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        factors = pair_scores.temperatures(target, view.length or self.length(target))
        head = min(view.heads(target.geometry.heads, 1)[0], len(factors) - 1)
        numbers = {"distance": torch.arange(factors.shape[1]), "factor": factors[head]}
        return numbers if factors.allclose(factors[:1]) else numbers | {"head": head}
