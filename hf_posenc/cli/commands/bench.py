"""``hf-posenc bench``: what schemes cost in time and memory, beside the model as it comes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Exit, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Dtype,
    command_line,
    dtype_of,
    model_path,
    whole_numbers,
    words_of,
)
from hf_posenc.cli.environment import environment
from hf_posenc.cli.errors import FAILED, PARTLY, BadArgument

if TYPE_CHECKING:
    from hf_posenc.insight.bench import Cell
    from hf_posenc.insight.bench.devices import Device

STARTER = "starter:llama"
RESULTS, PICTURES = "bench.json", ("bench.svg", "bench.png")


def bench(
    context: Context,
    schemes: Annotated[
        list[str], Option("--schemes", "--scheme", "-s", help="alibi,self_extend:group=8,window=128; may be repeated.")
    ],
    model: Annotated[
        str, Option("--model", "-m", help="A folder, a hub name, or starter:llama, starter:gpt2, starter:bert.")
    ] = STARTER,
    shape: Annotated[
        str | None, Option(help="Instead: random weights, as LAYERS,HIDDEN,HEADS,KV_HEADS, such as 2,512,8,8.")
    ] = None,
    kind: Annotated[str, Option(help="With --shape: llama, gpt2 or bert.")] = "llama",
    trained_length: Annotated[
        int | None, Option(min=1, help="With --shape; by default the longest length over the factor.")
    ] = None,
    lengths: Annotated[
        list[str] | None, Option("--lengths", "--length", "-l", help="Tokens, as in 512,2048; the default is both.")
    ] = None,
    factor: Annotated[
        float | None, Option("--factor", "-f", help="Of all schemes; by default 8, or what the longest length takes.")
    ] = None,
    decode: Annotated[bool, Option("--decode", help="Time single tokens behind a cache of each length.")] = False,
    train: Annotated[bool, Option("--train", help="Time forward and backward.")] = False,
    prefill: Annotated[
        bool | None, Option("--prefill/--no-prefill", help="Time reading a text; the default unless others are asked.")
    ] = None,
    against: Annotated[str, Option(help="unpatched (sdpa), naive (all scores and biases formed), or both.")] = (
        "unpatched,naive"
    ),
    rounds: Annotated[int, Option(min=1, help="Of each cell; fewer than 7 say little.")] = 7,
    batch: Annotated[int, Option(min=1, help="Rows.")] = 1,
    dtype: Dtype = None,
    device: Annotated[str | None, Option(help="cpu, cuda, cuda:1; by default CUDA where there is any.")] = None,
    threads: Annotated[int, Option(min=1, help="Of the processor.")] = 1,
    out: Annotated[Path | None, Option(help=f"Write {RESULTS} and pictures to this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Time schemes beside the model as it comes, and beside their naive form.

    All run in this process, once a round, and every round in reverse order; shown are medians of the ratios within
    rounds, with quartiles. Lengths beyond the model's are run on the unpatched one as well, for its time only. Memory
    is the peak above the model; in decoding the cache is part of it.
    """
    import torch

    from hf_posenc.insight.bench import bench as run
    from hf_posenc.insight.bench import device_of

    chosen = whole_numbers("--lengths", lengths) or [512, 2048]
    cases = [name for name, wanted in (("decode", decode), ("train", train)) if wanted]
    if prefill or (prefill is None and not cases):
        cases.insert(0, "prefill")
    if out is not None:
        from hf_posenc.core.plotting.figures import require_matplotlib

        require_matplotlib()
    place = device_of(device)
    subject = load(model, shape, kind, trained_length or max(16, int(max(chosen, default=1) / (factor or 8))), dtype)
    cells: list[Cell] = []
    about = about_run(context, place, model if shape is None else f"{kind} {shape}", str(subject.dtype), threads)
    was = torch.get_num_threads()
    try:
        with output.progress() as tell:
            for cell in run(
                subject, ",".join(schemes), chosen, cases=cases, against=words_of([against]), factor=factor,
                rounds=rounds, batch=batch, device=place, threads=threads, tell=tell,
            ):  # fmt: skip
                cells.append(cell)
                if out is not None:
                    write(cells, about, out)
    except KeyboardInterrupt:
        output.fail(f"Interrupted. {len(cells)} finished cell(s) kept.")
        show(cells, about, out, as_json)
        raise
    finally:
        torch.set_num_threads(was)
    show(cells, about, out, as_json)
    if any(cell.state == "failed" for cell in cells):
        raise Exit(FAILED)
    if any(cell.state == "refused" for cell in cells):
        raise Exit(PARTLY)


def load(model: str, shape: str | None, kind: str, trained_length: int, dtype: str | None) -> Any:
    """The model that is timed.

    Raises:
        BadArgument: a word cannot be read.
        OptionOutOfRange: the shape makes no model.
    """
    import torch

    from hf_posenc.checkpoints.load import from_pretrained
    from hf_posenc.insight.bench import random_model
    from hf_posenc.insight.bench.random_models import KINDS

    if shape is None:
        with output.other_bars_off():
            return from_pretrained(model_path(model), dtype=dtype_of(model, dtype))
    numbers = whole_numbers("--shape", [shape])
    if len(numbers) != 4:
        raise BadArgument(f"--shape takes LAYERS,HIDDEN,HEADS,KV_HEADS, got {shape!r}. Write for example 2,512,8,8.")
    if kind not in KINDS:
        raise BadArgument(f"--kind takes {', '.join(KINDS)}, got {kind!r}. Choose one of them.")
    found = getattr(torch, dtype or "float32", None)
    if not isinstance(found, torch.dtype):
        raise BadArgument(f"--dtype takes a type of torch, got {dtype!r}. Write for example bfloat16.")
    layers, hidden, heads, kv_heads = numbers
    return random_model((layers, hidden, heads, kv_heads), kind, trained_length, found)


def about_run(context: Context, device: Device, model: str, dtype: str, threads: int) -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "command": command_line(context), "model": model, "dtype": dtype.removeprefix("torch."),
        "device": device.name, "threads": threads, **environment(),
    }  # fmt: skip


def write(cells: list[Cell], about: dict[str, Any], folder: Path) -> None:
    """The numbers and the pictures as far as there are any; each file whole."""
    from hf_posenc.core.files.atomic import write_json
    from hf_posenc.insight.bench.plots import write_plot
    from hf_posenc.insight.bench.report import to_dict

    write_json(folder / RESULTS, to_dict(cells, about))
    for name in PICTURES:
        write_plot(cells, folder / name)


def show(cells: list[Cell], about: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """One table a case, what stands behind a dash, and where the files are."""
    from hf_posenc.insight.bench.report import (
        TITLES,
        remarks,
        table,
        to_dict,
    )

    if as_json:
        output.show_json(to_dict(cells, about))
        return
    for case in dict.fromkeys(cell.case for cell in cells):
        output.show_table(*table(cells, case), title=TITLES[case])
    for remark in remarks(cells):
        output.show_text(remark)
    if cells:
        output.show_text("{model}, {dtype}, {threads} thread(s) of {device}".format(**about))
    if out is not None and cells:
        output.show_text(f"Written to {out}: {', '.join((RESULTS, *PICTURES))}")
