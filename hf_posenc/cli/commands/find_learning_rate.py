"""``hf-posenc finetune --find-learning-rate``: a range test instead of the run, and the command of the run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hf_posenc.cli import output
from hf_posenc.cli.arguments import command_line
from hf_posenc.cli.errors import BadArgument
from hf_posenc.cli.next_commands import show_next

if TYPE_CHECKING:
    from typer import Context

    from hf_posenc.training import RangeTest

NAME = "learning_rate"


def check_for_range_test(learning_rate: float | None, resume: bool, push_to_hub: str | None) -> None:
    """Refuse options that contradict a test in which nothing is trained to be kept.

    Raises:
        BadArgument: one is given.
    """
    for name, contradicts in (
        ("--learning-rate", learning_rate is not None),
        ("--resume", resume),
        ("--push-to-hub", push_to_hub is not None),
    ):
        if contradicts:
            raise BadArgument(f"--find-learning-rate tries many rates and saves no model. Leave {name} out.")


def show_range_test(tested: RangeTest, context: Context, out: Path, as_json: bool) -> None:
    """Write ``learning_rate.json`` and its plot into a folder, and print the rate and the command of the run."""
    from hf_posenc.core.files.atomic import write_json
    from hf_posenc.errors import MissingExtra
    from hf_posenc.eval.report.range_test_curve import range_test_plot

    out.mkdir(parents=True, exist_ok=True)
    write_json(out / f"{NAME}.json", tested.to_dict())
    written = f"{NAME}.json"
    with suppress(MissingExtra):
        range_test_plot(tested, out / f"{NAME}.png")
        written += f", {NAME}.png"
    if as_json:
        output.show_json({"out": str(out), **tested.to_dict()})
        return
    output.show_table(
        ("learning rate", "loss minus before", "average"),
        [[f"{rate:.1e}", f"{difference:+.4f}", f"{average:+.4f}"] for rate, difference, average in rows_of(tested)],
        title="learning-rate range test (nats/token)",
    )
    output.show_text(f"Written to {out}: {written}. The model is not saved.")
    if tested.suggested is None:
        output.show_text("No rate lowered the loss of the rows: the model has nothing to learn there.")
        return
    output.show_text(
        f"Suggested: {tested.suggested:.1e}, a tenth of the last rate before the average of `loss minus before` rises "
        "from its lowest value back to 0."
    )
    show_next([f"{command_line(context, without=('find_learning_rate',))} --learning-rate {tested.suggested:.1e}"])


def rows_of(tested: RangeTest) -> list[tuple[float, float, float]]:
    """Every fourth step, and the last: rate, difference and its moving average."""
    steps = list(zip(tested.rates, tested.differences, tested.smoothed, strict=True))
    return [*steps[:-1:4], steps[-1]]
