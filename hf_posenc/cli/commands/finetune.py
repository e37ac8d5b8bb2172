"""``hf-posenc finetune``: a patched model trained briefly at its new length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Context, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Dtype,
    Factor,
    Model,
    SchemeOptions,
    TargetLength,
    command_line,
    dtype_of,
    model_path,
    scheme_options,
    tokenizer_of,
    whole_numbers,
)
from hf_posenc.eval.texts.stdlib_source import HELD_OUT, TRAINING, module_text

if TYPE_CHECKING:
    from hf_posenc.training import Tuned

PICTURE = "curve.png"


def finetune(
    context: Context,
    model: Model,
    scheme: Annotated[
        str | None, Option("--scheme", "-s", help="Put on first; by default what the checkpoint carries.")
    ] = None,
    factor: Factor = None,
    target_length: TargetLength = None,
    trained_length: Annotated[int | None, Option(help="Tokens, where the model's own word is wrong.")] = None,
    option: SchemeOptions = None,
    text: Annotated[
        list[Path] | None, Option(help="Training text; may be repeated; by default the standard library's sources.")
    ] = None,
    held_out: Annotated[list[Path] | None, Option(help="Text to measure on; by default likewise, others.")] = None,
    length: Annotated[int | None, Option(min=2, help="Tokens a row; by default the target length.")] = None,
    steps: Annotated[int, Option(min=1, help="Optimiser steps.")] = 30,
    method: Annotated[str, Option(help="lora, dora, lora_plus, ia3, prompt, prefix or full.")] = "lora",
    batch: Annotated[int, Option(min=1, help="Rows one process reads at a time.")] = 1,
    accumulate: Annotated[int, Option(min=1, help="Batches a step.")] = 1,
    learning_rate: Annotated[float, Option(help="Peak; large models and long runs want less.")] = 1e-3,
    rank: Annotated[int, Option(min=1, help="Of LoRA's matrices; of prompts, virtual tokens.")] = 16,
    packing: Annotated[
        str, Option(help="joined: documents see their predecessors in a row. separate: they do not.")
    ] = "joined",
    seed: Annotated[int, Option(min=0)] = 0,
    gradient_checkpointing: Annotated[bool, Option("--gradient-checkpointing", help="Less memory, more time.")] = False,
    bf16: Annotated[bool, Option("--bf16", help="Compute in bfloat16.")] = False,
    save_every: Annotated[int, Option(min=1, help="Steps between checkpoints.")] = 20,
    eval_every: Annotated[int, Option(min=1, help="Steps between measurements.")] = 10,
    eval_lengths: Annotated[
        list[str] | None, Option(help="Tokens, as in 256,512; by default the trained length doubled up to the target.")
    ] = None,
    out: Annotated[Path, Option(help="Folder of checkpoints, the curve and the finished adapter.")] = Path(
        "results/finetune"
    ),
    resume: Annotated[bool, Option("--resume", help="Go on from the last whole checkpoint in --out.")] = False,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a patched model briefly at its new length.

    The loss of the same held-out last tokens is measured at every length before, between and after the steps. Killed?
    The same command with --resume goes on. Under `accelerate launch` all processes share the rows.
    """
    from hf_posenc.checkpoints.load import from_pretrained
    from hf_posenc.training import Training, lengths_of
    from hf_posenc.training import finetune as train

    path = model_path(model)
    with told_how_to_resume(context, resume), output.progress() as tell:
        patched = from_pretrained(
            path, scheme=scheme, factor=factor, target_length=target_length, trained_length=trained_length,
            dtype=dtype_of(model, dtype), **scheme_options(scheme, option),
        )  # fmt: skip
        trained, target = lengths_of(patched)
        training = Training(
            length=length or target, steps=steps, method=method, batch=batch, accumulate=accumulate,
            learning_rate=learning_rate, rank=rank, packing=packing, seed=seed,  # type: ignore[arg-type]
            gradient_checkpointing=gradient_checkpointing, bf16=bf16, save_every=save_every, eval_every=eval_every,
            eval_lengths=tuple(whole_numbers("--eval-lengths", eval_lengths)),
        )  # fmt: skip
        tuned = train(
            patched, tokenizer_of(path), texts_of(text, TRAINING), training,
            held_out=texts_of(held_out, HELD_OUT), output=out, resume=resume,
            progress=lambda share, loss: tell(share, f"loss {loss:.3f}"),
        )  # fmt: skip
    if tuned.first:  # of several processes, one reports
        show(tuned, trained, out, as_json)


@contextmanager
def told_how_to_resume(context: Context, resuming: bool) -> Iterator[None]:
    """Say what command goes on, where the run is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        again = command_line(context) + ("" if resuming else " --resume")
        output.fail(f"Interrupted. The last whole checkpoint is kept; resume with: {again}")
        raise


def texts_of(files: list[Path] | None, modules: Sequence[str]) -> list[str]:
    """The files, or modules of the standard library."""
    if files is None:
        return [module_text(name) for name in modules]
    from hf_posenc.eval.texts.text_file import read_text

    return [read_text(file) for file in files]


def show(tuned: Tuned, trained: int, out: Path, as_json: bool) -> None:
    """What was measured before and after, and where the files are."""
    from hf_posenc.errors import MissingExtra
    from hf_posenc.eval.report.finetune_curve import curve_plot

    measured = [point for point in tuned.curve if point.held_out]
    if as_json:
        output.show_json({"out": str(out), "curve": [point.to_dict() for point in tuned.curve]})
        return
    rows = [
        [length, f"{length / trained:g}×", measured[0].held_out[length], measured[-1].held_out[length]]
        for length in measured[-1].held_out
    ]
    output.show_table(("length", "", "before", "after"), rows, title="held-out loss, nats/token")
    written = "the adapter, curve.json"
    with suppress(MissingExtra):
        curve_plot([tuned.curve], trained, out / PICTURE)
        written += f", {PICTURE}"
    output.show_text(f"Written to {out}: {written}")
