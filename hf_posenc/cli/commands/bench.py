"""``hf-posenc bench``: time and memory of schemes, relative to the unpatched model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Exit

from hf_posenc.cli import arguments as cli
from hf_posenc.cli import output
from hf_posenc.cli.commands.info import environment
from hf_posenc.cli.errors import FAILED, PARTLY
from hf_posenc.cli.global_options import BadArgument
from hf_posenc.core.files.paths import folder_to_write
from hf_posenc.core.lengths import tokens

if TYPE_CHECKING:
    from hf_posenc.insight.bench import BenchCell


STARTER = "starter:llama"
RESULTS = "bench.json"


def bench(
    context: Context,
    schemes: Annotated[
        list[str],
        cli.of_model("--schemes", "-s", help="As in alibi,self_extend:group=8,window=128; repeatable."),
    ],
    model: cli.Model = STARTER,
    base: cli.Base = None,
    shape: Annotated[
        str | None,
        cli.of_model(
            help="Instead of --model: a Llama with random float32 weights of LAYERS,HIDDEN,HEADS,KV_HEADS, such as "
            "2,512,8,8."
        ),
    ] = None,
    lengths: Annotated[
        list[str] | None, cli.of_measurement("--lengths", "-l", help="Sequence lengths in tokens; default: 512,2048.")
    ] = None,
    factor: Annotated[
        float | None,
        cli.of_model(
            "--factor",
            "-f",
            help="Extension factor; default: 8, or more if the longest length needs it; 1 with a position table.",
        ),
    ] = None,
    cases: Annotated[
        str,
        cli.of_measurement(
            help="prefill (forward pass over a text), decode (one token with a KV cache of each length), train "
            "(forward and backward); separated by commas."
        ),
    ] = "prefill",
    rounds: Annotated[
        int, cli.of_measurement(min=1, help="Measurements of each cell; fewer than 7 are unreliable.")
    ] = 7,
    batch_size: Annotated[int, cli.of_measurement(min=1, help="Rows of a call.")] = 1,
    compile: Annotated[
        bool, cli.of_measurement("--compile", help="Run all models under torch.compile, with dynamic shapes.")
    ] = False,
    dtype: cli.Dtype = None,
    device: cli.Device = None,
    threads: Annotated[int, cli.of_measurement(min=1, max=cli.MOST_THREADS, help="CPU threads.")] = 1,
    out: Annotated[Path | None, cli.of_output(help=f"Write {RESULTS} to this folder.")] = None,
    as_json: cli.AsJson = False,
) -> None:
    """Time schemes relative to the unpatched model.

    Each round runs both once, in alternating order. The table shows medians and quartiles of the ratios within
    rounds. Beyond its context length the unpatched model is timed too, though its outputs are meaningless there.
    Memory is the peak beyond the weights, counted on Linux and on CUDA; in decoding it includes the KV cache.
    """
    import torch

    from hf_posenc.core.files.atomic import write_json
    from hf_posenc.insight.bench import bench as run
    from hf_posenc.insight.bench import device_of

    if shape is not None:
        cli.check_unread(
            context, ("model", "base"), "has no effect beside --shape, which makes a model. Leave one out."
        )
    chosen = [tokens(word, "--lengths") for word in cli.words_of(lengths)] or [512, 2048]
    if out is not None:
        folder_to_write(out)
    torch.set_num_threads(threads)
    measured_on = device_of(device)
    trained = max(16, int(max(chosen) / (factor or 8)))  # of a model of --shape
    target = load(model, base, shape, trained, dtype).to(measured_on.torch)
    about = {
        "command": cli.command_line(context), "model": model if shape is None else shape,
        "dtype": str(target.dtype).removeprefix("torch."), "device": measured_on.name, "threads": threads,
        "compile": compile, **environment(),
    }  # fmt: skip
    cells: list[BenchCell] = []
    record: dict[str, Any] = {"about": about, "cells": []}
    try:
        with output.progress() as progress:
            for cell in run(
                target, ",".join(schemes), chosen, cases=cli.words_of([cases]), factor=factor, rounds=rounds,
                batch_size=batch_size, compile=compile, progress=progress,
            ):  # fmt: skip
                cells.append(cell)
                record["cells"].append(cell.to_dict())
                if out is not None:
                    write_json(out / RESULTS, record)
    except KeyboardInterrupt:
        output.fail(f"Interrupted. {len(cells)} finished cell(s) kept.")
        show(cells, record, out, as_json)
        raise
    show(cells, record, out, as_json)
    states = {cell.state for cell in cells}
    if "failed" in states:
        raise Exit(FAILED)
    if "refused" in states:
        raise Exit(PARTLY)


def load(model: str, base: str | None, shape: str | None, trained_length: int, dtype: str | None) -> Any:
    """Load the model to be timed, or create one with random weights."""
    import torch

    from hf_posenc.checkpoints.checkpoint import Checkpoint
    from hf_posenc.checkpoints.merge import load_unpatched
    from hf_posenc.insight.bench import random_model

    if shape is None:
        with output.other_bars_off():
            named = cli.model_named(model, base)
            if (own := Checkpoint.open(named).scheme) is not None:
                output.note(cli.REMOVED.format(own))
            return load_unpatched(**cli.loading_of(named, dtype))
    numbers = cli.whole_numbers("--shape", [shape])
    if len(numbers) != 4:
        raise BadArgument(f"--shape takes LAYERS,HIDDEN,HEADS,KV_HEADS, got {shape!r}. Write for example 2,512,8,8.")
    if dtype == "auto":
        raise BadArgument("--dtype auto needs stored weights, which --shape does not have. Write for example bfloat16.")
    layers, hidden, heads, kv_heads = numbers
    return random_model((layers, hidden, heads, kv_heads), trained_length, getattr(torch, dtype or "float32"))


def show(cells: Sequence[BenchCell], record: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """Show one table per case, the reasons of missing values, and the files written; as JSON, ``record``."""
    from hf_posenc.insight.bench.results import TITLES, remarks, table

    if as_json:
        output.show_json(record)
        return
    for case in dict.fromkeys(cell.case for cell in cells):
        output.show_table(*table(cells, case), title=TITLES[case])
    for remark in remarks(cells):
        output.show_text(remark)
    if not cells:
        return
    shown = "{model}, {dtype}, {threads} thread(s) of {device}".format(**record["about"])
    output.show_text(shown + (", compiled" if record["about"]["compile"] else ""))
    if out is not None:
        output.show_text(f"Written to {out}: {RESULTS}")
