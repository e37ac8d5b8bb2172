"""Save plots as deterministic PNG or SVG files, and their numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_posenc.core.files.staged import staged
from hf_posenc.core.plotting import save_figure
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.plots.marks import figure
from hf_posenc.insight.plots.registry import Plot, Sheet

FILES = ".png", ".svg"
ComputedPlot = tuple[Plot, Sequence[Sheet]]
"""A plot and its numbers, one sheet per scheme."""


def check_ending(path: Path) -> None:
    """Refuse a file name with a suffix of another format."""
    if path.suffix.lower() not in FILES:
        raise OptionOutOfRange(f"A plot's file must end in {', '.join(FILES)}, got {str(path)!r}. Rename it.")


def save(computed: Sequence[ComputedPlot], path: Path) -> list[Path]:
    """Write one file per plot, all of them or none; several files are named after their plots.

    Returns:
        The files.
    """
    names = [path.name if len(computed) == 1 else f"{path.stem}-{plot.name}{path.suffix}" for plot, _ in computed]
    with staged(path.parent) as staging:
        for name, (plot, sheets) in zip(names, computed, strict=True):
            save_figure(figure(plot, sheets), staging / name)
    return [path.with_name(name) for name in names]


def to_dict(plot: Plot, sheets: Sequence[Sheet]) -> dict[str, Any]:
    """Return the numbers of a plot as plain values for JSON."""
    schemes = [{"label": sheet.label, "numbers": dict(sheet.numbers)} for sheet in sheets]
    text = json.dumps(schemes, default=Tensor.tolist)
    plain = json.loads(text, parse_constant=lambda _: None)  # infinite and NaN numbers become null
    return {"picture": plot.name, "title": plot.title, "schemes": plain}
