"""``hf-posenc probe``: measure how the attention heads of a trained model use position."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Context

from hf_posenc.cli import arguments as cli
from hf_posenc.cli import output
from hf_posenc.cli.global_options import BadArgument
from hf_posenc.cli.settings import TEXT_FIELD, Text, set_option, settings_of, text_sources
from hf_posenc.core.files.paths import check_not_taken, folder_to_write

if TYPE_CHECKING:
    from torch import Tensor

    from hf_posenc.insight.probe import Head, Probe
    from hf_posenc.insight.probe.variant import Variant

RESULTS = "probe.json"
COUNTS = ("rows", "seed")
"""Settings of a probe that have no option of their own."""
COLUMNS = (
    "layer", "head", "mostly", "mean distance", "at one distance", "which", "first token", "beyond trained",
    "shuffled layer", "shuffled model", "moved",
)  # fmt: skip


def probe(
    context: Context,
    model: cli.Model,
    scheme: Annotated[
        str | None, cli.of_model("--scheme", "-s", help="Also probe the model with this scheme, and compare.")
    ] = None,
    factor: cli.Factor = None,
    target_length: cli.TargetLength = None,
    option: cli.SchemeOptions = None,
    length: Annotated[
        int | None,
        cli.length_option(
            "--length",
            "-l",
            help="Sequence length; default: the target length of the scheme; without one, the size of the "
            "position table, or twice the trained length.",
        ),
    ] = None,
    text: Text = None,
    samples: Annotated[int, cli.of_measurement(min=1, help="Texts that are measured.")] = 4,
    settings: Annotated[
        list[str] | None,
        set_option("Any other setting: rows=256 (queries measured in each text), seed=1, text_field=body"),
    ] = None,
    out: Annotated[Path | None, cli.of_output(help="Write plots and probe.json to this folder.")] = None,
    base: cli.Base = None,
    dtype: cli.Dtype = None,
    device: cli.Device = None,
    as_json: cli.AsJson = False,
) -> None:
    """Measure where heads attend, and which of them use position.

    Attention weights are percentages of a query's sum, averaged over queries in the second half of each text (in an
    encoder, all).
    """
    from hf_posenc.checkpoints.load import from_pretrained
    from hf_posenc.checkpoints.tokenizer import tokenizer_of
    from hf_posenc.insight.bench import device_of
    from hf_posenc.insight.probe import probe as run

    if scheme is None and (factor is not None or target_length is not None):
        raise BadArgument(
            "--factor and --target-length belong to a scheme. Pass --scheme, or --length for longer texts."
        )
    counts = settings_of(context, (*COUNTS, TEXT_FIELD))
    (own_text,) = text_sources(counts, text)
    if out is not None:
        from hf_posenc.core.plotting import require_matplotlib
        from hf_posenc.insight.probe.plots import PLOTS

        require_matplotlib()
        folder_to_write(out)
        check_not_taken(out, (RESULTS, *(f"{name}.png" for name in PLOTS)), (RESULTS,))
    named = cli.model_named(model, base)
    options = cli.scheme_options(scheme, option)
    measured_on = device_of(device)
    with output.progress() as progress:
        progress(None, "loading")
        result = run(
            from_pretrained(**cli.loading_of(named, dtype)).to(measured_on.torch), tokenizer_of(named),
            scheme=scheme, factor=factor, target_length=target_length, length=length, text=own_text, samples=samples,
            progress=lambda doing: progress(None, doing), **counts, **options,
        )  # fmt: skip
        written = [] if out is None else write(result, out)
    if as_json:
        output.show_json(result.to_dict())
    else:
        show(result)
        output.show_text("\n".join(map(str, written)))


def write(result: Probe, folder: Path) -> list[Path]:
    """Write the plots and ``probe.json``, all of them or none."""
    from hf_posenc.core.files.atomic import write_json
    from hf_posenc.core.files.staged import staged
    from hf_posenc.insight.probe.plots import write_plots

    with staged(folder) as staging:
        plots = write_plots(result, staging)
        write_json(staging / RESULTS, result.to_dict())
    return [folder / name for name in (*(file.name for file in plots), RESULTS)]


def show(result: Probe) -> None:
    """Show a table of heads and a summary for each variant."""
    for number, variant in enumerate(result.variants):
        moved = result.moved if number == 1 else None
        rows = [row(head, moved) for head in variant.heads]
        columns = COLUMNS if moved is not None else COLUMNS[:-1]
        output.show_table(columns, rows, title=f"{variant.label}, {variant.length:,} tokens")
    for variant in result.variants:
        output.show_text(summary(variant))


def row(head: Head, moved: Tensor | None) -> list[object]:
    """Format one head as a line of the table; ``moved`` is the column of a second variant, ``[layers, heads]``."""
    cells: list[object] = [
        head.layer, head.head, head.kind, f"{head.mean_distance:.1f}", percent(head.share), head.strongest,
        percent(head.sink), percent(head.beyond), percent(head.direct), percent(head.total),
    ]  # fmt: skip
    if moved is not None:
        cells.append(percent(float(moved[head.layer, head.head])))
    return cells


def percent(share: float) -> str:
    """Format a share as ``12 %``."""
    return f"{100 * share:.0f} %"


def summary(variant: Variant) -> str:
    """Summarize one variant: number of heads that use position, and attention weight on the first token."""
    using = sum(head.uses_position for head in variant.heads)
    return (
        f"{variant.label}: {using} of {len(variant.heads)} heads use position; "
        f"attention weight on the first token by layer: {', '.join(map(percent, variant.sinks))}"
    )
