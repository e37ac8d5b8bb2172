"""Write plots of your own in one file: four plots of the guide. Three draw added codes, one rotations by coordinates.

    hf-posenc show binary sinusoidal --picture path --import examples/guide_plots.py --out path.png

A plot is a subclass of `Plot` with the decorator. `shows` says which schemes it can draw, `numbers` computes the data,
and `draw` draws it with matplotlib; the base class `Lines` has a `draw` for lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.plotting import MAGNITUDES
from hf_posenc.insight.plots import Plot, Sheet, Target, View, codes, marks, pair_scores, register_plot
from hf_posenc.insight.plots.bases import Line, Lines, Maps
from hf_posenc.insight.plots.registry import position_range

LENGTH = 100
SIDE = 15  # patches of an image
TIED = 1e-6  # relative difference up to which two singular values count as equal
GOLDEN = math.pi * (3 - math.sqrt(5))  # gives every channel a clearly different direction


class OfCodes(Plot):
    """Base of plots for schemes with added or learned codes, and for those that rotate."""

    trained_length, positions = 128, LENGTH

    def shows(self, target: Target) -> bool:
        return codes.has_code(target)


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
        return {"distance": torch.arange(length) - origin, "product": products(target, length, origin)}

    def mark(self, axes: Any, sheets: Sequence[Sheet]) -> None:
        axes.axhline(0, color=marks.INK, alpha=0.4, linewidth=0.8)
        axes.axvline(0, color=marks.INK, alpha=0.4, linewidth=0.8)


def products(target: Target, length: int, origin: int) -> Tensor:
    """⟨code(origin), code(p)⟩ over |code(origin)|², for p = 0 … length − 1, ``[length]``."""
    code = codes.codes(target, length).double()
    return (code @ code[origin]) / code[origin].square().sum().clamp(min=1e-12)


@register_plot
class Path(OfCodes):
    """Path of the code in the plane of its first two principal components."""

    name, title = "path", "Path of the code along its first two principal components"
    positions = 32

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        plane, shares = path(target, view.length or LENGTH)
        return {"plane": plane, "variance": list(shares)}

    def draw(self, figure: Any, sheets: Sequence[Sheet]) -> None:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        longest = max(len(sheet.numbers["plane"]) for sheet in sheets)
        colours = ScalarMappable(Normalize(0, longest - 1), MAGNITUDES)
        grid = marks.sheet_panels(figure, sheets, (3.6, 3.5), ("", ""))
        for axes, sheet in zip(grid, sheets, strict=True):
            plane, (first, second) = sheet.numbers["plane"].numpy(), sheet.numbers["variance"]
            axes.plot(plane[:, 0], plane[:, 1], color=marks.INK, alpha=0.45, linewidth=1.0, zorder=1)
            for position, colour in enumerate(colours.to_rgba(torch.arange(len(plane)).numpy())):
                axes.plot(*plane[position], "o", color=colour, markersize=4.6, mec=marks.INK, mew=0.3, zorder=2)
            for position in (0, len(plane) - 1):
                axes.annotate(
                    str(position), plane[position], xytext=(0, -16), textcoords="offset points", fontsize=9, zorder=3,
                    ha="center",
                    bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": marks.INK, "lw": 0.5},
                )  # fmt: skip
            axes.set_aspect("equal", adjustable="datalim")
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_xlabel(f"first component ({100 * first:.0f} % of variance)")
            axes.set_ylabel(f"second component ({100 * second:.0f} %)")
        figure.colorbar(colours, ax=grid, label="position (tokens)", shrink=0.9)


def path(target: Target, length: int) -> tuple[Tensor, tuple[float, float]]:
    """Codes in the plane of their two widest directions, ``[length, 2]``, and the shares of variance these have."""
    code = codes.codes(target, length).double()
    centred = code - code.mean(0)
    _, size, directions = torch.linalg.svd(centred, full_matrices=False)
    angles = GOLDEN * torch.arange(code.shape[1], dtype=torch.float64)
    first = among_ties(angles.cos(), size, directions, 0)
    second = among_ties(angles.sin(), size, directions, 1, first)
    plane = centred @ torch.stack((first, second), dim=1)
    shares = plane.square().sum(0) / centred.square().sum().clamp(min=1e-30)
    return plane, (float(shares[0]), float(shares[1]))


def among_ties(towards: Tensor, size: Tensor, directions: Tensor, which: int, before: Tensor | None = None) -> Tensor:
    """Unit vector in the span of all directions with the same variance as number ``which``, closest to ``towards``.

    Codes may have equal variance in many directions (binary digits do); the choice among them, and the sign of a single
    one, would otherwise be arbitrary. The vector is orthogonal to ``before``.
    """
    tied = directions[(size - size[min(which, len(size) - 1)]).abs() <= TIED * size[0]]
    direction = tied.T @ (tied @ towards)
    if before is not None:
        direction = direction - before * (before @ direction)
    return direction / direction.norm().clamp(min=1e-12)


@register_plot
class Grid(Maps):
    """Score of the middle patch of an image with every other; a one-dimensional scheme numbers patches line by line."""

    name, title = "grid", "Score of the middle patch of an image with all others"
    key, unit = "score", "score with the patch at ×"
    axis_names, sizes = ("column (patches)", "row (patches)"), ((3.3, 3.3), (3.3, 3.3))
    trained_length = positions = SIDE * SIDE
    companions = ("rotation", "row_rotation", "bias")

    def shows(self, target: Target) -> bool:
        return getattr(target.scheme.rotation(), "axes", None) is not None

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        side = max(1, round((view.length or SIDE * SIDE) ** 0.5))
        middle = side // 2
        return {"row": middle, "column": middle, "score": patch_scores(target, side, side, middle, middle)}

    def mark(self, axes: Any, sheet: Sheet) -> None:
        axes.plot(sheet.numbers["column"], sheet.numbers["row"], "x", color=marks.HUES[4], markersize=6)


def patch_scores(target: Target, height: int, width: int, row: int, column: int) -> Tensor:
    """Logits of one patch of an image with all patches, masked or not, for the first head, ``[height, width]``.

    For a scheme with coordinates, the last two are row and column, and all others are 0. Any other scheme numbers the
    patches row by row, like a text.
    """
    number = torch.arange(height * width)
    coordinates = None
    if getattr(target.scheme.rotation(), "axes", None) is not None:
        count = target.scheme.coordinates(position_range(1), None).shape[-1]
        coordinates = torch.zeros(1, height * width, count, dtype=torch.long)
        coordinates[0, :, -1] = number % width
        if count > 1:
            coordinates[0, :, -2] = number // width
    logits = pair_scores.logits(pair_scores.call_of(target, height * width, coordinates=coordinates))
    return logits[0, 0, row * width + column].view(height, width)
