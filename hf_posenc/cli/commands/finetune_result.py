"""Output of ``hf-posenc finetune``: losses before and after training by length, or the rates of a range test."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Context

from hf_posenc.cli import output
from hf_posenc.cli.arguments import command_line
from hf_posenc.cli.global_options import program

if TYPE_CHECKING:
    from hf_posenc.training import LossPoint, RangeTest, Tuned
    from hf_posenc.training.emit import Emitted


PLOT = "curve.png"
MEASURED_ON_SOURCES = (
    "The losses are of sources of Python's standard library: --text is too short to hold out its end, or is streamed. "
    "Pass --held-out to measure on text like that trained on."
)


def show_result(tuned: Tuned, trained: int, out: Path, kind: str, as_json: bool) -> None:
    """Show the held-out loss before and after training, and the files written: a model or an adapter."""
    from hf_posenc.errors import MissingPackage
    from hf_posenc.training.loss_curve import curve_plot

    if as_json:
        start = {**asdict(tuned.start), "parameters": dict(tuned.start.parameters)}
        output.show_json({"out": str(out), "start": start, "curve": [point.to_dict() for point in tuned.curve]})
        return
    measured = [point for point in tuned.curve if point.held_out]
    before, after = measured[0].held_out, measured[-1].held_out
    rows = [
        [length, f"{length / trained:g}×", f"{before[length]:.3f}", f"{loss:.3f}", compared(measured[-1], length)]
        for length, loss in after.items()
    ]
    columns = ("length", "", "before", "after", f"after, minus at {min(after):,}")
    output.show_table(columns, rows, title="held-out cross-entropy loss (nats/token)")
    output.show_text("± is a 95 % confidence interval, window by window.")
    written = f"the {kind}, curve.json"
    with suppress(MissingPackage):
        curve_plot([tuned.curve], trained, out / PLOT)
        written += f", {PLOT}"
    output.show_text(f"Written to {out}: {written}")


def compared(point: LossPoint, length: int) -> str:
    """Format what a longer context adds: loss minus loss of the same tokens at the shortest length."""
    shortest = min(point.held_out)
    difference = None if length == shortest else point.difference(length, shortest)
    if difference is None:
        return ""
    mean, half = difference
    return f"{mean:+.3f}" if isnan(half) else f"{mean:+.3f} ± {half:.3f}"  # a single window has no interval


def show_rate(tested: RangeTest, context: Context, as_json: bool) -> None:
    """Show every fourth step of a learning-rate range test, and the command that trains at the suggested rate."""
    if as_json:
        output.show_json(asdict(tested))
        return
    steps = list(zip(tested.rates, tested.differences, tested.smoothed, strict=True))
    output.show_table(
        ("learning rate", "loss minus before", "average"),
        [[f"{rate:.1e}", f"{change:+.4f}", f"{average:+.4f}"] for rate, change, average in (*steps[:-1:4], steps[-1])],
        title="learning-rate range test (nats/token)",
    )
    if tested.suggested is None:
        output.show_text("No rate lowered the loss of the rows: the model has nothing to learn there.")
        return
    output.show_text(
        f"Suggested: {tested.suggested:.1e}, a tenth of the last rate at which the average, past its lowest "
        "value, is still below 0. Nothing was saved."
    )
    context.params["find_learning_rate"] = False
    show_next([f"{command_line(context)} --learning-rate {tested.suggested:.1e}"])


def show_emitted(run: Emitted, folder: Path, scheme: Sequence[str]) -> None:
    """Show where a run for another framework was written, and the next commands."""
    from hf_posenc.training.emit.run import OUTPUT

    output.show_text(f"Written to {folder}; nothing is trained yet, and no text is held out.")
    if run.restored:
        output.show_text("The scheme is no RoPE type of transformers: install hf_posenc where you train.")
    unnamed = scheme if run.unnamed else []
    measure = command("eval", folder / OUTPUT, *unnamed)
    show_next([f"(cd {shlex.quote(str(folder))} && {run.command})", measure])


def show_next(commands: Sequence[str]) -> None:
    """Show commands, one per line."""
    if commands:
        output.show_text("\n".join(("Next:", *(f"  {command}" for command in commands))))


def after_finetune(run: Path, model: Any) -> list[str]:
    """Return the commands that measure a tuned model on its held-out text, and merge or export it if possible."""
    from hf_posenc.checkpoints.plain_config import is_expressible

    measure = command("eval", run)
    if hasattr(model, "merge_and_unload"):
        return [measure, command("merge", run, "--out", f"{run}-merged")]
    if is_expressible(model):
        return [measure, command("export", run, "--out", f"{run}-plain")]
    return [measure]


def command(name: str, model: Path, *words: str) -> str:
    """Format a command on a model, quoted for a shell."""
    return shlex.join([*program(), name, "--model", str(model), *words])


@contextmanager
def resume_hint(context: Context, flag: str = "") -> Iterator[None]:
    """If the block is interrupted, write the running command, followed by ``flag``, to stderr."""
    try:
        yield
    except KeyboardInterrupt:
        again = " ".join(filter(None, (command_line(context), flag)))
        output.fail(f"Interrupted. What is complete is kept; resume with: {again}")
        raise
