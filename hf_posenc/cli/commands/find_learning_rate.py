"""``hf-posenc find-learning-rate``: a range test on the text of a run, and the command of the run at the rate found."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Context, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson, command_line
from hf_posenc.cli.commands.finetune_options import FinetuneOptions
from hf_posenc.cli.commands.finetune_setup import set_up
from hf_posenc.cli.next_commands import show_next
from hf_posenc.cli.option_group import expands
from hf_posenc.cli.output_paths import check_output_folder

if TYPE_CHECKING:
    from hf_posenc.training import RangeTest

NAME = "learning_rate"


@dataclass(frozen=True)
class RangeTestOptions(FinetuneOptions):
    """The run whose learning rate is sought, and where the losses of the test go."""

    out: Annotated[
        Path, Option(help=f"Folder of {NAME}.json and {NAME}.png; the run that is printed goes there, too.")
    ] = Path("results/finetune")


@expands(RangeTestOptions)
def find_learning_rate(context: Context, options: RangeTestOptions, as_json: AsJson = False) -> None:
    """Find the learning rate of a fine-tuning run by a range test.

    The options are those of the run, as `finetune` takes them. 50 steps are trained at learning rates that rise from
    1e-6 to 1, on the text of the run; its held-out text is read and checked, and not measured. The losses are written
    to learning_rate.json and .png in --out, no model is saved, and the command of the run at the rate found is printed.
    How long the run is, its schedule, stages, checkpoints and measurements only appear in that command.
    """
    from hf_posenc.training import range_test

    check_output_folder("--out", options.out)  # the run may go there, too
    with output.progress() as show_progress:
        setup = set_up(context, options)
        tested = range_test(
            setup.model, setup.tokenizer, setup.texts, setup.training, held_out=setup.held_out,
            progress=lambda share, loss: show_progress(share, f"loss {loss:.3f}"),
        )  # fmt: skip
    written = write_files(tested, options.out)
    if as_json:
        output.show_json({"out": str(options.out), **tested.to_dict()})
        return
    output.show_table(
        ("learning rate", "loss minus before", "average"),
        [[f"{rate:.1e}", f"{difference:+.4f}", f"{average:+.4f}"] for rate, difference, average in rows_of(tested)],
        title="learning-rate range test (nats/token)",
    )
    output.show_text(f"Written to {options.out}: {', '.join(written)}. The model is not saved.")
    show_suggestion(tested, command_line(context, command="finetune"))


def write_files(tested: RangeTest, folder: Path) -> list[str]:
    """Write ``learning_rate.json`` and, where matplotlib is installed, its plot; returns the names of the files."""
    from hf_posenc.core.files.atomic import write_json
    from hf_posenc.errors import MissingPackage
    from hf_posenc.eval.report.range_test_curve import range_test_plot

    folder.mkdir(parents=True, exist_ok=True)
    written = [f"{NAME}.json"]
    write_json(folder / written[0], tested.to_dict())
    with suppress(MissingPackage):
        range_test_plot(tested, folder / f"{NAME}.png")
        written.append(f"{NAME}.png")
    return written


def show_suggestion(tested: RangeTest, run: str) -> None:
    """Print the suggested rate and the command ``run`` with it."""
    if tested.suggested is None:
        output.show_text("No rate lowered the loss of the rows: the model has nothing to learn there.")
        return
    output.show_text(
        f"Suggested: {tested.suggested:.1e}, a tenth of the last rate before the average of `loss minus before` rises "
        "from its lowest value back to 0."
    )
    show_next([f"{run} --learning-rate {tested.suggested:.1e}"])


def rows_of(tested: RangeTest) -> list[tuple[float, float, float]]:
    """Every fourth step, and the last: rate, difference and its moving average."""
    steps = list(zip(tested.rates, tested.differences, tested.smoothed, strict=True))
    return [*steps[:-1:4], steps[-1]]
