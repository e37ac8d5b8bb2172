"""Accuracy, or loss of the answer, by length and depth: a table for each entry whose cells are coloured.

The palette is cividis, perceptually uniform and the same to colour-blind readers (Nuñez et al. 2018, arXiv:1712.01662).
Bright is better in every table: of losses the palette runs from the highest of all entries, dark, to the lowest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hf_posenc.core.plotting import MAGNITUDES, length_names
from hf_posenc.eval.report.phrases import UNITS, is_share, to_units
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.rows import Row


@dataclass(frozen=True)
class Scale:
    """The colour scale that all tables of a metric share: its worst and best value, in units of the axis."""

    metric: str
    worst: float
    best: float

    def brightness(self, value: float) -> float:
        """A value's place on the palette: 0 is the worst, 1 the best."""
        return (value - self.worst) / (self.best - self.worst) if self.best != self.worst else 1.0

    def label(self, value: float) -> str:
        """A value with its unit: ``75 %``, ``2.31 nats/token``."""
        unit = "%" if is_share(self.metric) else UNITS.get(self.metric, "")
        return f"{self.written(value)} {unit}".rstrip()

    def written(self, value: float) -> str:
        """A value as cells have it."""
        return f"{value:.0f}" if is_share(self.metric) else f"{value:.2f}"

    def cell(self, row: Row | None) -> dict[str, str]:
        """Text and colours of a cell; a dash without colour where nothing was measured."""
        from matplotlib import colormaps
        from matplotlib.colors import to_hex

        if row is None:
            return {"text": "–", "colour": "transparent", "ink": "inherit"}
        value = to_units(row.metric, row.value)
        bright = self.brightness(value)
        colour = to_hex(colormaps[MAGNITUDES](bright))
        return {"text": self.written(value), "colour": colour, "ink": "#fff" if bright < 0.55 else "#000"}


def scale_of(comparison: Comparison, task: str, metric: str) -> Scale:
    """Shares run from 0 to 100 %, losses from the highest to the lowest of all entries."""
    if is_share(metric):
        return Scale(metric, 0.0, 100.0)
    values = [row.value for row in deep_rows(comparison, task, metric)]
    return Scale(metric, max(values), min(values))


def deep_rows(comparison: Comparison, task: str, metric: str) -> list[Row]:
    """The rows of one metric that belong to a depth."""
    return [r for r in comparison.rows if (r.task, r.metric) == (task, metric) and r.depth is not None]


def depth_tables(comparison: Comparison, task: str, metric: str, scale: Scale) -> list[dict[str, Any]]:
    """A metric with lengths as columns and depths as lines, one table for each entry."""
    rows = {(r.scheme, r.length, r.depth): r for r in deep_rows(comparison, task, metric)}
    lengths = sorted({row.length for row in rows.values() if row.length is not None})
    depths = sorted({row.depth for row in rows.values() if row.depth is not None})
    return [
        {
            "label": label,
            "lengths": length_names(lengths),
            "lines": [
                {"depth": f"{100 * depth:g} %", "cells": [scale.cell(rows.get((label, n, depth))) for n in lengths]}
                for depth in depths
            ],
        }
        for label in comparison.labels
        if any(cell[0] == label for cell in rows)
    ]
