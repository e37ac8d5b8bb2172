"""Plots as files: deterministic PNG or SVG, and their numbers for JSON."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.core.files.staged import staged
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.plots.marks import figure
from hf_posenc.insight.plots.registry import Plot, Sheet

FILES = ".png", ".svg"


@dataclass(frozen=True)
class ComputedPlot:
    """A plot with its numbers, one sheet per scheme."""

    plot: Plot
    sheets: Sequence[Sheet]

    def encoded(self, kind: str) -> bytes:
        """Encode as ``png``, or as ``svg`` with text as text."""
        from matplotlib import rc_context

        file, names = io.BytesIO(), ", ".join(sheet.label for sheet in self.sheets)
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": f"{self.plot.title}: {names}"}):
            unset = ("Software",) if kind == "png" else ("Date", "Creator")  # which differ from one time to the next
            figure(self.plot, self.sheets).savefig(file, format=kind, metadata=dict.fromkeys(unset))
        return file.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain values for JSON."""
        schemes = [{"label": sheet.label, "numbers": jsonable(sheet.numbers)} for sheet in self.sheets]
        return {"picture": self.plot.name, "title": self.plot.title, "schemes": schemes}


def check_ending(path: Path) -> str:
    """Return the suffix of a file name.

    Raises:
        OptionOutOfRange: the suffix is none of `FILES`.
    """
    ending = path.suffix.lower()
    if ending not in FILES:
        raise OptionOutOfRange(f"A plot's file must end in {', '.join(FILES)}, got {str(path)!r}. Rename it.")
    return ending


def save(computed: Sequence[ComputedPlot], path: Path) -> list[Path]:
    """Write plots, all of them or none: one file each, named after the plot where there are several.

    Returns:
        The files.

    Raises:
        OptionOutOfRange: the ending is none of `FILES`.
    """
    kind, written = check_ending(path)[1:], []
    with staged(path.parent) as staging:
        for one in computed:
            name = path.name if len(computed) == 1 else f"{path.stem}-{one.plot.name}{path.suffix}"
            write_bytes(staging / name, one.encoded(kind))
            written.append(path.with_name(name))
    return written


def jsonable(value: Any) -> Any:
    """Convert tensors to lists, and infinite or NaN numbers to null."""
    if isinstance(value, Tensor):
        return jsonable(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): jsonable(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
