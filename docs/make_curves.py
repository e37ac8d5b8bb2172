"""Draw loss and passkey retrieval against length, from the ``results.csv`` of two comparisons that were committed:

    python docs/make_curves.py          # docs/demo.png and docs/real_model.png

docs/demo.csv is that of ``hf-posenc demo``. docs/real_model.csv is of the commands in docs/choose.md, on a model of the
package registry.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_posenc.core.plotting import COLOURS, MARKERS, NEUTRAL, SETTINGS, length_ticks
from hf_posenc.schemes.entry import UNPATCHED

DOCS = Path(__file__).parent
FILES = {"demo": 256, "real_model": 8192}
"""Comparisons, and the trained length of their models in tokens."""
PANELS = {"nll": ("loss (nats/token)", 1.0), "acc": ("passkeys found (%)", 100.0)}
Line = list[tuple[int, float, float]]


def lines_of(file: Path) -> dict[str, dict[str, Line]]:
    """By metric and scheme: length, value and standard error, without the rows of single depths."""
    found: dict[str, dict[str, Line]] = {metric: {} for metric in PANELS}
    with file.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            if row["metric"] in PANELS and not row["depth"]:
                point = int(row["length"]), float(row["value"]), float(row["stderr"] or "nan")
                found[row["metric"]].setdefault(row["scheme"], []).append(point)
    return {metric: lines for metric, lines in found.items() if lines}


def draw(lines: Mapping[str, Mapping[str, Line]], trained: int) -> Any:
    """One panel a metric, one line a scheme; the legend is in the order of the last panel's values."""
    from matplotlib import pyplot as plt

    with plt.rc_context(SETTINGS):
        figure, grid = plt.subplots(
            1, len(lines), figsize=(5.2 * len(lines) + 1.6, 3.6), squeeze=False, layout="constrained"
        )
        for axes, (metric, of_scheme) in zip(grid[0], lines.items(), strict=True):
            label, unit = PANELS[metric]
            for number, (scheme, line) in enumerate(of_scheme.items()):
                draw_line(axes, scheme, line, unit, number)
            lengths = sorted({length for line in of_scheme.values() for length, _, _ in line})
            length_ticks(axes, lengths, trained)
            axes.axvline(trained, color=NEUTRAL, linestyle=(0, (4, 3)), linewidth=0.8, alpha=0.6, zorder=1)
            axes.set_xlabel("length (tokens; multiples of the trained length)")
            axes.set_ylabel(label)
            axes.grid(axis="y", color=NEUTRAL, alpha=0.15, linewidth=0.7)
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(*in_order(grid[0][0], next(iter(lines.values()))), loc="outside right center", frameon=False)
        return figure


def draw_line(axes: Any, scheme: str, line: Line, unit: float, number: int) -> None:
    """A line with a bar of one standard error at each length; the unpatched model is grey and dashed."""
    lengths, values, errors = zip(*line, strict=True)
    base = scheme == UNPATCHED
    axes.errorbar(
        lengths, [unit * value for value in values], [0 if e != e else unit * e for e in errors], label=scheme,
        color=NEUTRAL if base else COLOURS[number % len(COLOURS)], linestyle="--" if base else "-",
        marker=MARKERS[number % len(MARKERS)], markersize=4, linewidth=1.5, elinewidth=0.8,
    )  # fmt: skip


def in_order(axes: Any, lines: Mapping[str, Line]) -> tuple[Sequence[Any], Sequence[str]]:
    """Handles and labels, the highest line at the longest length first."""
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda n: -lines[labels[n]][-1][1])
    return [handles[n] for n in order], [labels[n] for n in order]


def main() -> None:
    """Draw what is there."""
    for name, trained in FILES.items():
        figure = draw(lines_of(DOCS / f"{name}.csv"), trained)
        figure.savefig(DOCS / f"{name}.png", dpi=144)


if __name__ == "__main__":
    main()
