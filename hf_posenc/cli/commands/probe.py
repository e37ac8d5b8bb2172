"""``hf-posenc probe``: what a trained model does with position."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Dtype,
    Factor,
    Model,
    SchemeOptions,
    TargetLength,
    dtype_of,
    model_path,
    scheme_options,
    tokenizer_of,
)
from hf_posenc.cli.errors import BadArgument

if TYPE_CHECKING:
    from hf_posenc.insight.probe import Head, Probe

COLUMNS = (
    "layer", "head", "mostly", "mean distance", "at one distance", "which", "first token", "beyond trained",
    "shuffled layer", "shuffled model", "moved",
)  # fmt: skip


def probe(
    model: Model,
    scheme: Annotated[
        str | None, Option("--scheme", "-s", help="Also look at the model with this scheme, and at what it moved.")
    ] = None,
    factor: Factor = None,
    target_length: TargetLength = None,
    option: SchemeOptions = None,
    length: Annotated[
        int | None, Option("--length", "-l", min=2, help="Tokens of a text; by default what the scheme reaches.")
    ] = None,
    text: Annotated[Path | None, Option(help="A text file; by default held-out standard library sources.")] = None,
    samples: Annotated[int, Option(min=1, help="Texts whose loss is measured.")] = 32,
    rows: Annotated[int, Option(min=1, help="Rows looked at in each of four texts.")] = 256,
    scored: Annotated[int, Option(min=1, help="Tokens at the end of each text whose loss is measured.")] = 32,
    sinks: Annotated[int, Option(min=1, help="Tokens at the start that count as the first.")] = 1,
    seed: Annotated[int, Option(min=0, help="Of the shuffle of positions.")] = 0,
    out: Annotated[Path | None, Option(help="Write pictures and probe.json to this folder.")] = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Look inside a trained model: where its heads look, which of them use position, how much text it makes use of.

    Weights are shares of a row, on average over rows of the second half of each text (of the whole, in an encoder).
    """
    from hf_posenc.checkpoints.load import from_pretrained
    from hf_posenc.insight.probe import probe as look

    if scheme is None and (factor is not None or target_length is not None):
        raise BadArgument(
            "--factor and --target-length belong to a scheme. Pass --scheme, or --length for longer texts."
        )
    if out is not None:
        from hf_posenc.core.plotting.figures import require_matplotlib

        require_matplotlib()
    path, options = model_path(model), scheme_options(scheme, option)
    with output.progress() as tell:
        tell(None, "loading")
        found = look(
            from_pretrained(path, dtype=dtype_of(model, dtype)), tokenizer_of(path),
            scheme=scheme, factor=factor, target_length=target_length, length=length, text=text, samples=samples,
            rows=rows, scored=scored, sinks=sinks, seed=seed, tell=lambda doing: tell(None, doing), **options,
        )  # fmt: skip
        written = [] if out is None else write(found, out)
    if as_json:
        output.show_json(found.to_dict())
    else:
        show(found)
        output.show_text("".join(f"\n{file}" for file in written).strip("\n"))


def write(found: Probe, folder: Path) -> list[Path]:
    """The pictures and the numbers, all of them or none."""
    from hf_posenc.core.files.atomic import write_json
    from hf_posenc.core.files.staged import staged
    from hf_posenc.insight.probe.plots import write_plots

    with staged(folder) as beside:
        pictures = write_plots(found, beside)
        write_json(beside / "probe.json", json.loads(json.dumps(found.to_dict())))
    return [folder / name for name in (*(file.name for file in pictures), "probe.json")]


def show(found: Probe) -> None:
    """A table of heads for each side, and what can be said of the whole."""
    moved = found.moved
    for number, side in enumerate(found.sides):
        shift = moved if number == 1 else None
        rows = [row(head, None if shift is None else float(shift[head.layer, head.head])) for head in side.heads]
        columns = COLUMNS if shift is not None else COLUMNS[:-1]
        output.show_table(columns, rows, title=f"{side.label}, {side.length:,} tokens")
    for side in found.sides:
        output.show_text("\n".join(summary(side, found)))


def row(head: Head, moved: float | None) -> list[Any]:
    """A head as a line of the table."""
    cells = [
        head.layer, head.head, head.kind, f"{head.mean_distance:.1f}", percent(head.share), head.strongest,
        percent(head.sink), percent(head.beyond), percent(head.direct), percent(head.total),
    ]  # fmt: skip
    return cells if moved is None else [*cells, percent(moved)]


def percent(share: float) -> str:
    """``12 %``."""
    return f"{100 * share:.0f} %"


def summary(side: Any, found: Probe) -> list[str]:
    """What a side comes to."""
    heads = side.heads
    using = sum(head.uses_position for head in heads)
    lines = [
        f"{side.label}: {using} of {len(heads)} heads use position; "
        f"weight on the first token by layer: {', '.join(map(percent, side.sinks))}"
    ]
    if side.reading is not None:
        lengths = ", ".join(f"{n:,}: {m:.3f}" for n, m in zip(side.reading.lengths, side.reading.means, strict=True))
        hurts = side.reading.hurts_from
        lines.append(f"  loss (nats/token) of the same last tokens at {lengths}")
        lines.append(
            f"  effective length {side.reading.effective:,} tokens (trained {found.trained_length:,}); "
            + ("more text does not hurt" if hurts is None else f"more text hurts from {hurts:,} on")
        )
    return lines
