"""``hf-posenc probe``: measure how the attention heads of a trained model use position."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Context

from hf_posenc.cli import arguments as cli
from hf_posenc.cli import output
from hf_posenc.cli.global_options import BadArgument
from hf_posenc.cli.settings import TEXT_FIELD, Text, set_option, settings_of, text_sources
from hf_posenc.core.files.paths import check_not_taken, folder_to_write

if TYPE_CHECKING:
    from hf_posenc.insight.probe import Head, Probe
    from hf_posenc.insight.probe.variant import Variant

RESULTS = "probe.json"
COUNTS = ("rows", "scored", "seed")
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
    samples: Annotated[int, cli.of_measurement(min=1, help="Texts whose loss is measured.")] = 32,
    settings: Annotated[
        list[str] | None,
        set_option(
            "Any other setting: rows=256 (queries measured in each of four texts), scored=32 (tokens at the end of "
            "each text whose loss is measured), seed=1, text_field=body"
        ),
    ] = None,
    out: Annotated[Path | None, cli.of_output(help="Write plots and probe.json to this folder.")] = None,
    base: cli.Base = None,
    dtype: cli.Dtype = None,
    device: cli.Device = None,
    as_json: cli.AsJson = False,
) -> None:
    """Probe a trained model: where its heads attend, which of them use position, how much context it uses.

    Attention weights are percentages of a query's sum, averaged over queries in the second half of each text (in an
    encoder, all). The used length is the shortest whose loss exceeds the lowest by at most two standard errors of
    the difference, paired by text. A longer length hurts if its loss is higher than that.
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
    named, options, measured_on = cli.model_named(model, base), cli.scheme_options(scheme, option), device_of(device)
    with output.progress() as progress:
        progress(None, "loading")
        found = run(
            from_pretrained(**cli.loading_of(named, dtype)).to(measured_on.torch), tokenizer_of(named),
            scheme=scheme, factor=factor, target_length=target_length, length=length, text=own_text, samples=samples,
            progress=lambda doing: progress(None, doing), **counts, **options,
        )  # fmt: skip
        written = [] if out is None else write(found, out)
    if as_json:
        output.show_json(found.to_dict())
    else:
        show(found)
        output.show_text("".join(f"\n{file}" for file in written).strip("\n"))


def write(found: Probe, folder: Path) -> list[Path]:
    """Write the plots and ``probe.json``, all of them or none."""
    from hf_posenc.core.files.atomic import write_json
    from hf_posenc.core.files.staged import staged
    from hf_posenc.insight.probe.plots import write_plots

    with staged(folder) as staging:
        plots = write_plots(found, staging)
        write_json(staging / RESULTS, json.loads(json.dumps(found.to_dict())))
    return [folder / name for name in (*(file.name for file in plots), RESULTS)]


def show(found: Probe) -> None:
    """Show a table of heads and a summary for each variant."""
    moved = found.moved
    for number, variant in enumerate(found.variants):
        shift = moved if number == 1 else None
        rows = [row(head, None if shift is None else float(shift[head.layer, head.head])) for head in variant.heads]
        columns = COLUMNS if shift is not None else COLUMNS[:-1]
        output.show_table(columns, rows, title=f"{variant.label}, {variant.length:,} tokens")
    for variant in found.variants:
        output.show_text("\n".join(summary(variant, found)))


def row(head: Head, moved: float | None) -> list[object]:
    """Format one head as a line of the table."""
    cells: list[object] = [
        head.layer, head.head, head.kind, f"{head.mean_distance:.1f}", percent(head.share), head.strongest,
        percent(head.sink), percent(head.beyond), percent(head.direct), percent(head.total),
    ]  # fmt: skip
    return cells if moved is None else [*cells, percent(moved)]


def percent(share: float) -> str:
    """Format a share as ``12 %``."""
    return f"{100 * share:.0f} %"


def summary(variant: Variant, found: Probe) -> list[str]:
    """Summarize one variant: heads that use position, attention sinks, loss by context length."""
    from hf_posenc.insight.probe.loss_by_context import FEWEST

    heads, loss = variant.heads, variant.loss
    using = sum(head.uses_position for head in heads)
    lines = [
        f"{variant.label}: {using} of {len(heads)} heads use position; "
        f"attention weight on the first token by layer: {', '.join(map(percent, variant.sinks))}"
    ]
    if loss is not None:
        lengths = ", ".join(f"{n:,}: {m:.3f}" for n, m in zip(loss.lengths, loss.means, strict=True))
        hurts = "at no length" if loss.hurts_from is None else f"from {loss.hurts_from:,} tokens on"
        used = f"used length {loss.used_length:,} tokens, the shortest within two standard errors of the lowest loss "
        used += f"(trained length {found.trained_length:,}); more context hurts {hurts}"
        few = f"{len(loss.losses)} text(s) are too few to tell the used length. Pass --samples {FEWEST} or more."
        lines.append(f"  cross-entropy loss (nats/token) of the same last tokens by context length: {lengths}")
        lines.append(f"  {used if len(loss.losses) >= FEWEST else few}")
    return lines
