"""Plot of queries and keys of one token at several positions: absolute codes against relative positions.

absolute   q_p = W_q (x + code(p))      moves through the plane, and what a score owes to position is in q and k
rotation   q_p = R(p) W_q x             turns about the origin: a score depends on the angle between, i − j
bias       q_p = W_q x                  stays; the score gets its position afterwards
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_posenc.attention.routes import length_rotation
from hf_posenc.core.plotting.figures import MAGNITUDES
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.plots import codes, marks, pair_scores, rotation_matrices
from hf_posenc.insight.plots.registry import Plot, Scales, Sheet, View, register_plot
from hf_posenc.insight.plots.target import Target

LENGTH = 12
SEED = 0


@register_plot
class QueriesKeys(Plot):
    """Query and key of one token at several positions, in the plane of two channels."""

    name, title = "queries_keys", "Query and key of one token at several positions"
    hooks = ("embed", "rotation", "row_rotation", "bias")
    trained_length = 64

    def shows(self, target: Target) -> bool:
        return codes.has_code(target) or target.has("bias")

    def is_informative(self, target: Target) -> bool:
        return False

    def length(self, target: Target) -> int:
        return LENGTH

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        length = view.length or LENGTH
        queries, keys, scores = vectors(target, length)
        channels = view.chosen(queries.shape[1], plane(target, length))
        if len(channels) != 2:
            raise OptionOutOfRange(f"channels must be two, the axes of the plane, got {len(channels)}. Name two.")
        return {
            "channels": channels, "queries": queries[:, channels], "keys": keys[:, channels],
            "change": float((scores[1:, 1:] - scores[:-1, :-1]).nan_to_num().abs().max()),
        }  # fmt: skip

    def draw(self, figure: Any, sheets: Sequence[Sheet], scales: Scales) -> None:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        longest = max(len(sheet.numbers["queries"]) for sheet in sheets)
        colours = ScalarMappable(Normalize(0, longest - 1), MAGNITUDES)
        hues = colours.to_rgba(torch.arange(longest).numpy())
        grid = marks.panels(figure, len(sheets), 3.5, 3.7)
        for axes, sheet in zip(grid, sheets, strict=True):
            for name, marker in (("queries", "o"), ("keys", "s")):
                points = sheet.numbers[name].double().numpy()
                axes.plot(*points.T, color=marks.ink(), alpha=0.35, linewidth=0.9, zorder=1)
                axes.scatter(
                    *points.T, c=hues[: len(points)], marker=marker, s=34, edgecolors=marks.ink(),
                    linewidths=0.5, zorder=2, label="query" if marker == "o" else "key",
                )  # fmt: skip
            axes.plot(0, 0, "+", color=marks.ink(), markersize=9)
            axes.set_aspect("equal", adjustable="datalim")
            axes.margins(0.15)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_title(f"{marks.named(sheet.label, 3.5)}\n{moved(sheet.numbers['change'])}", loc="left", fontsize=9)
            first, second = sheet.numbers["channels"]
            axes.set_xlabel(f"channel {first}")
            axes.set_ylabel(f"channel {second}")
        figure.colorbar(colours, ax=grid, label="position (tokens); + is the origin", shrink=0.85)
        marks.legend(figure, *grid)


def moved(change: float) -> str:
    """What happens to the score of a pair when both tokens move on by one."""
    if change < 1e-5:
        return "one token on: every score stays"
    return f"one token on: a score changes by up to {change:.2f}"


def plane(target: Target, length: int) -> list[int]:
    """The two channels of a pair that turns about half around; the first two where nothing rotates."""
    rotating = list(rotation_matrices.rotations(target, length).values())
    if not rotating:
        return [0, 1]
    turns = torch.as_tensor(rotating[0].frequencies, dtype=torch.float64) * length
    pair = int((turns.clamp(min=1e-9).log() - torch.tensor(torch.pi).log()).abs().argmin())
    half = rotating[0].dims // 2
    return [pair, pair + half] if rotating[0].layout == "half" else [2 * pair, 2 * pair + 1]


def vectors(target: Target, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys ``[position, head_dim]`` of the first head, and the scores of all pairs ``[query, key]``."""
    if not target.has("rotation", "row_rotation", "bias"):
        return projected(codes.codes(target, length), target.geometry.head_dim)
    pairs = pair_scores.pairs_of(target, length, "random")
    by_row, call = pairs.call.terms.row_rotation, pairs.call
    if by_row is not None:  # as the last row sees them, whose length decides
        longest = int(by_row.length_of(torch.tensor([[length - 1]])))
        call = length_rotation.rotated_call(call, slice(0, length), longest)
    return call.queries[0][0, 0], call.keys[0][0, 0], pairs.scores()[0]


def projected(code: Tensor, dims: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same for added codes: one token embedding, plus codes, through random W_q and W_k."""
    draws = torch.Generator().manual_seed(SEED)
    hidden = torch.randn(code.shape[1], generator=draws) + code
    queries, keys = hidden @ torch.randn(2, code.shape[1], dims, generator=draws) / code.shape[1] ** 0.5
    return queries, keys, queries @ keys.T / dims**0.5
