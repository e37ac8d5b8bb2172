"""``hf-posenc bench``: time and memory of schemes, relative to the unpatched model and to a naive implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Exit

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    MODEL,
    MOST_THREADS,
    REMOVED,
    AsJson,
    Base,
    Device,
    Model,
    check_unread,
    floating_dtype,
    length_option,
    lengths_of,
    loading_of,
    model_named,
    of_measurement,
    of_model,
    of_output,
    whole_numbers,
    words_of,
)
from hf_posenc.cli.commands.bench_results import RESULTS, BenchResults, about_run
from hf_posenc.cli.errors import FAILED, PARTLY
from hf_posenc.cli.global_options import BadArgument
from hf_posenc.cli.output import check_output_folder

if TYPE_CHECKING:
    from hf_posenc.insight.bench import BenchCell

STARTER = "starter:llama"


def bench(
    context: Context,
    schemes: Annotated[
        list[str], of_model("--schemes", "-s", help="alibi,self_extend:group=8,window=128; may be repeated.")
    ],
    model: Model = STARTER,
    base: Base = None,
    shape: Annotated[
        str | None,
        of_model(
            help="Instead of --model: random weights of LAYERS,HIDDEN,HEADS,KV_HEADS, such as 2,512,8,8; a Llama, or "
            "gpt2:2,512,8,8, bert:2,512,8,8."
        ),
    ] = None,
    trained_length: Annotated[
        int | None,
        length_option(help="With --shape; default: the longest length / factor.", heading=MODEL),
    ] = None,
    lengths: Annotated[
        list[str] | None, of_measurement("--lengths", "-l", help="Sequence lengths in tokens; default: 512,2048.")
    ] = None,
    factor: Annotated[
        float | None,
        of_model(
            "--factor",
            "-f",
            help="Extension factor of all schemes; default: 8, or more if the longest length needs it.",
        ),
    ] = None,
    cases: Annotated[
        str,
        of_measurement(
            help="prefill (forward pass over a text), decode (one token behind a KV cache of each length), "
            "static_decode (the same with a StaticCache), train (forward and backward); separated by commas."
        ),
    ] = "prefill",
    baselines: Annotated[
        str, of_measurement(help="Compare with: unpatched (sdpa), naive (materializes all scores and biases), or both.")
    ] = "unpatched,naive",
    rounds: Annotated[int, of_measurement(min=1, help="Measurements of each cell; fewer than 7 are unreliable.")] = 7,
    batch: Annotated[int, of_measurement("--batch-size", min=1, help="Batch size.")] = 1,
    rows: Annotated[
        str,
        of_measurement(
            help="full; padded: rows of ever fewer tokens, down to half; packed: four documents in every row."
        ),
    ] = "full",
    compiled: Annotated[
        bool, of_measurement("--compile", help="Run all models under torch.compile, with dynamic shapes.")
    ] = False,
    dtype: Annotated[
        str | None,
        of_model(
            callback=floating_dtype,
            help="Data type of the weights; default: as stored (starters and --shape: float32).",
        ),
    ] = None,
    device: Device = None,
    threads: Annotated[int, of_measurement(min=1, max=MOST_THREADS, help="CPU threads.")] = 1,
    out: Annotated[Path | None, of_output(help=f"Write {RESULTS} and plots to this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Time schemes relative to the unpatched model and to a naive implementation.

    All variants run in this process, once per round, alternately forwards and backwards in order; shown are medians and
    quartiles of the ratios within rounds. Lengths beyond the model's context length are run unpatched as well, for
    their time only. Memory is the peak beyond the weights; in decoding it includes the KV cache.
    """
    from hf_posenc.insight.bench import bench as run
    from hf_posenc.insight.bench import device_of

    if shape is None:
        check_unread(context, ("trained_length",), "has an effect with --shape only. Add that, or leave it out.")
    else:
        check_unread(context, ("model", "base"), "has no effect beside --shape, which makes a model. Leave one out.")
    chosen = lengths_of("--lengths", lengths) or [512, 2048]
    if out is not None:
        from hf_posenc.core.plotting import require_matplotlib

        require_matplotlib()
        check_output_folder("--out", out)
    measured_on = device_of(device)
    trained = trained_length or max(16, int(max(chosen, default=1) / (factor or 8)))
    target = load(model, base, shape, trained, dtype)
    about = about_run(
        context, measured_on, model if shape is None else shape, str(target.dtype), threads,
        rows=rows, compiled=compiled,
    )  # fmt: skip
    results = BenchResults([], about, measured_on.torch.type)
    measure = partial(
        run, target, ",".join(schemes), chosen, cases=words_of([cases]), baselines=words_of([baselines]), factor=factor,
        rounds=rounds, batch=batch, rows=rows, compiled=compiled, device=measured_on, threads=threads,
    )  # fmt: skip
    collect(measure, results, out, as_json)
    results.show(out, as_json)
    states = {cell.state for cell in results.cells}
    if "failed" in states:
        raise Exit(FAILED)
    if "refused" in states:
        raise Exit(PARTLY)


def collect(
    measure: Callable[..., Iterable[BenchCell]], results: BenchResults, out: Path | None, as_json: bool
) -> None:
    """Take cells as they are measured, and write after each; what is finished is shown if the rest is interrupted."""
    try:
        with output.progress() as progress:
            for cell in measure(progress=progress):
                results.cells.append(cell)
                if out is not None:
                    results.write(out)
    except KeyboardInterrupt:
        output.fail(f"Interrupted. {len(results.cells)} finished cell(s) kept.")
        results.show(out, as_json)
        raise


def load(model: str, base: str | None, shape: str | None, trained_length: int, dtype: str | None) -> Any:
    """Load the model to be timed, or create one with random weights.

    Raises:
        BadArgument: an argument cannot be parsed.
        OptionOutOfRange: there is no model of that shape.
    """
    import torch

    from hf_posenc.checkpoints.merge import load_unpatched
    from hf_posenc.insight.bench import random_model
    from hf_posenc.insight.bench.models import KINDS

    if shape is None:
        with output.other_bars_off():
            loaded, own = load_unpatched(**loading_of(model_named(model, base), dtype))
        if own is not None:
            output.note(REMOVED.format(own))
        return loaded
    kind, colon, listed = shape.rpartition(":")
    kind = kind if colon else "llama"
    numbers = whole_numbers("--shape", [listed])
    if len(numbers) != 4:
        raise BadArgument(f"--shape takes LAYERS,HIDDEN,HEADS,KV_HEADS, got {shape!r}. Write for example 2,512,8,8.")
    if kind not in KINDS:
        raise BadArgument(f"--shape is of {', '.join(KINDS)}, got {kind!r}. Write for example gpt2:2,512,8,8.")
    if dtype == "auto":
        raise BadArgument("--dtype auto needs stored weights, which --shape has not. Write for example bfloat16.")
    layers, hidden, heads, kv_heads = numbers
    return random_model((layers, hidden, heads, kv_heads), kind, trained_length, getattr(torch, dtype or "float32"))
