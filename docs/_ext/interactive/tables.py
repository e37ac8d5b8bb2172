"""Tables of the interactive page: numbers of schemes for which the page has no formula.

For a few factors, each table has the data of plots: scores and biases of the last query by distance, distances in use,
frequencies, codes, and the mask. Learned parameters have their initial values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.plots.compose import PlotRequest, sheet
from hf_posenc.insight.plots.kinds import plot_of
from hf_posenc.insight.plots.registry import View
from hf_posenc.schemes.entry import Entry, entries_of

TRAINED_LENGTH = 64
FACTORS = (1.0, 2.0, 4.0)
HEADS, CHANNELS, POSITIONS = 4, 32, 64  # largest numbers in a table
CELLS = 64  # rows and columns of a mask
DIGITS = 5
PLOTS = ("score_curve", "bias_curve", "distance_curve", "frequencies", "code", "visible")
HOOKS = {"frequencies": ("rotation", "row_rotation"), "visible": ("visible", "regions")}  # shown even if trivial


def table(scheme: str) -> dict[str, Any]:
    """The numbers of one scheme at every factor that it accepts; a scheme with a table accepts only small ones."""
    (entry,) = entries_of(scheme)
    by_factor = []
    for factor in FACTORS:
        lengths = {"trained_length": TRAINED_LENGTH, "factor": factor}
        try:
            by_factor.append(at_factor(entry, PlotRequest([entry], lengths=lengths)))
        except OptionOutOfRange:
            if not by_factor:
                raise
    return {"label": entry.label, "trained_length": by_factor[0].pop("trained_length"), "by_factor": by_factor}


def at_factor(entry: Entry, request: PlotRequest) -> dict[str, Any]:
    """The numbers of one scheme at the factor of a request."""
    with request.target(entry, plot_of("score_curve")) as target:
        geometry = target.geometry
        shown = [name for name in PLOTS if plot_of(name).shows(target) or target.has(*HOOKS.get(name, ()))]
    length = geometry.target_length
    found: dict[str, Any] = {
        "factor": geometry.factor, "length": length, "trained_length": geometry.trained_length,
    }  # fmt: skip
    for name in shown:
        view = View(length=min(length, POSITIONS) if name == "code" else length)
        numbers = sheet(plot_of(name), replace(request, view=view), entry).numbers
        found |= CHOSEN[name](numbers)
    return found


def score(numbers: Any) -> dict[str, Any]:
    """Scores by distance."""
    return {"score": rounded(numbers["score"])}


def biases(numbers: Any) -> dict[str, Any]:
    """Biases of a few heads by distance."""
    return {"heads": numbers["heads"][:HEADS], "biases": [rounded(curve) for curve in numbers["bias"][:HEADS]]}


def distances(numbers: Any) -> dict[str, Any]:
    """Distances in use."""
    return {"distance": rounded(numbers["used"])}


def frequencies(numbers: Any) -> dict[str, Any]:
    """Radians per token of each pair; if there are several rotations, of the first."""
    return {"frequencies": rounded(next(iter(numbers["after"].values())))}


def code(numbers: Any) -> dict[str, Any]:
    """Codes of the first positions."""
    return {"code": [rounded(row, digits=3) for row in numbers["code"][:, :CHANNELS]]}


def mask(numbers: Any) -> dict[str, Any]:
    """The mask as rows of 0 and 1, of which every ``stride``-th is kept: at most `CELLS` rows."""
    stride = max(1, -(-len(numbers["changed"]) // CELLS))
    visible = ~numbers["changed"][::stride, ::stride].isnan()
    return {"stride": stride, "mask": ["".join("01"[int(cell)] for cell in row) for row in visible.tolist()]}


CHOSEN = {
    "score_curve": score, "bias_curve": biases, "distance_curve": distances, "frequencies": frequencies,
    "code": code, "visible": mask,
}  # fmt: skip


def rounded(values: Tensor, digits: int = DIGITS) -> Sequence[float | None]:
    """Round numbers to the digits that a picture shows; None for infinite numbers and NaN."""
    return [float(f"{value:.{digits}g}") if abs(value) < float("inf") else None for value in values.double().tolist()]
