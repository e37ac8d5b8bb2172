"""Plot a benchmark: time and memory relative to the unpatched model, against length, two panels per case."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from hf_posenc.core.plotting.figures import (
    COLOURS,
    MARKERS,
    length_names,
    panels,
    plain,
    save_figure,
)
from hf_posenc.insight.bench.models import UNPATCHED
from hf_posenc.insight.bench.results import BenchCell

PANEL = (4.6, 3.4)  # inches


def write_plot(cells: Sequence[BenchCell], path: Path) -> bool:
    """Draw ratios to the unpatched model; False where there are none.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    shown = [cell for cell in cells if cell.time_ratio(UNPATCHED) is not None]
    cases = list(dict.fromkeys(cell.case for cell in shown))
    if not cases:
        return False
    canvas, grid = panels(2 * PANEL[0], len(cases) * PANEL[1], len(cases), 2, shared=False)
    for panel, (case, name) in zip(grid, product(cases, ("time", "memory")), strict=True):
        draw(panel, curves([cell for cell in shown if cell.case == case], name))
        panel.set_title(f"{case}: {name}", loc="left", fontsize=10)
        panel.set_ylabel(f"{name} / unpatched")
    handles, labels = grid[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)
    save_figure(canvas, path)
    return True


RatioCurve = list[tuple[int, float, float, float]]
"""Length, value, and lower and upper error: quartiles of the ratio of times."""


def curves(cells: Sequence[BenchCell], what: str) -> dict[str, RatioCurve]:
    """Ratios of time or memory to the unpatched model, by scheme."""
    found: dict[str, RatioCurve] = {}
    for cell in cells:
        time, memory = cell.time_ratio(UNPATCHED), cell.memory_ratio(UNPATCHED)
        if what == "time" and time is not None:
            point = cell.length, time.median, time.median - time.low, time.high - time.median
            found.setdefault(cell.scheme, []).append(point)
        elif what == "memory" and memory is not None:
            found.setdefault(cell.scheme, []).append((cell.length, memory, 0.0, 0.0))
    return found


def style_of(number: int) -> dict[str, Any]:
    """Colour, marker and dashes of a line; used-up colours come again, dashed and with hollow markers."""
    again = number // len(COLOURS)
    return {
        "color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)],
        "linestyle": ("-", "--", ":")[min(again, 2)], "markerfacecolor": "white" if again else None,
    }  # fmt: skip


def draw(axes: Any, lines: dict[str, RatioCurve]) -> None:
    """One line per scheme, and a dashed line at 1, the unpatched model."""
    lengths = sorted({point[0] for line in lines.values() for point in line})
    axes.axhline(1.0, color="#555555", linestyle=(0, (4, 3)), linewidth=1.0, zorder=1)
    for number, (scheme, line) in enumerate(lines.items()):
        x, y, down, up = zip(*sorted(line), strict=True)
        axes.errorbar(
            x, y, (down, up), label=scheme, markersize=5, linewidth=1.6, elinewidth=0.8, zorder=3, **style_of(number)
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, length_names(lengths))
    axes.minorticks_off()
    axes.set_xlabel("tokens")
    axes.set_ylim(bottom=0)
    plain(axes)
