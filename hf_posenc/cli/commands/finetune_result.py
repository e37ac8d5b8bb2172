"""What ``hf-posenc finetune`` shows at its end: losses before and after, by length, and where the result is."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from hf_posenc.cli import output

if TYPE_CHECKING:
    from hf_posenc.training import LossPoint, Tuned

PLOT = "curve.png"


def show_result(tuned: Tuned, trained: int, out: Path, kind: str, as_json: bool) -> None:
    """Show the held-out loss before and after training, and the files written: a model or an adapter."""
    from hf_posenc.errors import MissingPackage
    from hf_posenc.training.curve_plot import curve_plot

    measured = [point for point in tuned.curve if point.held_out]
    if as_json:
        start = {**asdict(tuned.start), "parameters": dict(tuned.start.parameters)}
        output.show_json({"out": str(out), "start": start, "curve": [point.to_dict() for point in tuned.curve]})
        return
    before, after = measured[0], measured[-1]
    rows = [
        [
            length,
            f"{length / trained:g}×",
            *(f"{point.held_out[length]:.3f}" for point in (before, after)),
            compared(after, length),
        ]
        for length in after.held_out
    ]
    columns = ("length", "", "before", "after", f"after, minus at {min(after.held_out):,}")
    output.show_table(columns, rows, title="held-out cross-entropy loss (nats/token)")
    output.show_text("± is a 95 % confidence interval, window by window.")
    written = f"the {kind}, curve.json"
    with suppress(MissingPackage):
        curve_plot([tuned.curve], trained, out / PLOT)
        written += f", {PLOT}"
    output.show_text(f"Written to {out}: {written}")


def compared(point: LossPoint, length: int) -> str:
    """What a longer context adds: the loss minus that of the same tokens behind the shortest context."""
    shortest = min(point.held_out)
    difference = None if length == shortest else point.difference(length, shortest)
    if difference is None:
        return ""
    mean, half = difference
    return f"{mean:+.3f}" if isnan(half) else f"{mean:+.3f} ± {half:.3f}"  # a single window has no interval
