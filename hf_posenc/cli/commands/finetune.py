"""``hf-posenc finetune``: fine-tune a patched model at its target context length."""

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
from hf_posenc.cli.errors import BadArgument
from hf_posenc.cli.text_arguments import FIELD, SOURCES, DocumentSeparator, TextField, check_reading, training_sources
from hf_posenc.eval.texts.stdlib_source import HELD_OUT, TRAINING, module_text

if TYPE_CHECKING:
    from torch import nn

    from hf_posenc.training import Tuned

PLOT = "curve.png"


def finetune(
    context: Context,
    model: Model,
    scheme: Annotated[
        str | None, Option("--scheme", "-s", help="Scheme to patch in first; default: the scheme of the checkpoint.")
    ] = None,
    factor: Factor = None,
    target_length: TargetLength = None,
    trained_length: Annotated[
        int | None, Option(help="Pre-training context length in tokens, where the configuration is wrong.")
    ] = None,
    option: SchemeOptions = None,
    text: Annotated[
        list[str] | None, Option(help=f"Training text: {SOURCES}; default: sources of the standard library.")
    ] = None,
    held_out: Annotated[
        list[str] | None,
        Option(help="Evaluation text, named likewise; default: other sources of the standard library."),
    ] = None,
    text_field: TextField = FIELD,
    document_separator: DocumentSeparator = None,
    streaming: Annotated[
        bool, Option("--streaming", help="Read the training text while training, in its order, instead of before.")
    ] = False,
    length: Annotated[
        int | None, Option(min=2, help="Training sequence length in tokens; default: the target length.")
    ] = None,
    steps: Annotated[int, Option(min=1, help="Optimiser steps.")] = 30,
    method: Annotated[str, Option(help="lora, dora, lora_plus, ia3, prompt, prefix or full.")] = "lora",
    batch: Annotated[int, Option(min=1, help="Sequences per process and forward pass.")] = 1,
    accumulate: Annotated[int, Option(min=1, help="Batches per optimiser step.")] = 1,
    learning_rate: Annotated[float, Option(help="Peak learning rate; use less for large models and long runs.")] = 1e-3,
    rank: Annotated[int, Option(min=1, help="Rank of LoRA's matrices; for prompt and prefix, virtual tokens.")] = 16,
    packing: Annotated[
        str, Option(help="joined: a document attends to those packed before it. separate: it does not.")
    ] = "joined",
    seed: Annotated[int, Option(min=0)] = 0,
    gradient_checkpointing: Annotated[bool, Option("--gradient-checkpointing", help="Less memory, more time.")] = False,
    bf16: Annotated[bool, Option("--bf16", help="Compute in bfloat16.")] = False,
    save_every: Annotated[int, Option(min=1, help="Steps between checkpoints.")] = 20,
    eval_every: Annotated[int, Option(min=1, help="Steps between measurements.")] = 10,
    eval_lengths: Annotated[
        list[str] | None,
        Option(help="Lengths in tokens, as in 256,512; default: the trained length, doubled up to the target."),
    ] = None,
    out: Annotated[Path, Option(help="Folder of checkpoints, loss curve and trained adapter.")] = Path(
        "results/finetune"
    ),
    resume: Annotated[bool, Option("--resume", help="Resume from the last complete checkpoint in --out.")] = False,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a patched model at its target context length.

    The cross-entropy loss of the same last held-out tokens is measured at every length before, during and after
    training. After an interruption, the same command with --resume continues. Under `accelerate launch` the processes
    share the sequences.
    """
    from hf_posenc.checkpoints.load import from_pretrained
    from hf_posenc.training import Training, lengths_of
    from hf_posenc.training import finetune as train
    from hf_posenc.training.resume import checkpoint_folders

    path = model_path(model)
    if not resume and checkpoint_folders(out):
        raise BadArgument(
            f"{out} holds checkpoints of an earlier run. Continue it with --resume, or name another --out."
        )
    check_reading([*(text or ()), *(held_out or ())], text_field, document_separator)
    if streaming and not text:
        raise BadArgument("--streaming reads a text while training, and none is named. Pass --text, or leave it out.")
    texts, measured_on = training_sources(text, held_out, text_field, document_separator, streaming=streaming)
    with resume_hint(context, resume), output.progress() as show_progress:
        patched = from_pretrained(
            path, scheme=scheme, factor=factor, target_length=target_length, trained_length=trained_length,
            dtype=dtype_of(model, dtype), **scheme_options(scheme, option),
        )  # fmt: skip
        if scheme is not None:
            check_effect(patched, scheme)
        trained, target = lengths_of(patched)
        training = Training(
            length=length or target, steps=steps, method=method, batch=batch, accumulate=accumulate,
            learning_rate=learning_rate, rank=rank, packing=packing, seed=seed,  # type: ignore[arg-type]
            gradient_checkpointing=gradient_checkpointing, bf16=bf16, save_every=save_every, eval_every=eval_every,
            eval_lengths=tuple(whole_numbers("--eval-lengths", eval_lengths)),
        )  # fmt: skip
        tuned = train(
            patched, tokenizer_of(path), texts or modules(TRAINING), training,
            held_out=measured_on or modules(HELD_OUT), output=out, resume=resume,
            on_read=lambda documents, tokens: show_progress(None, f"read {documents:,} documents, {tokens:,} tokens"),
            progress=lambda share, loss: show_progress(share, f"loss {loss:.3f}"),
        )  # fmt: skip
    if tuned.first:  # of several processes, one reports
        show(tuned, trained, out, "model" if method == "full" else "adapter", as_json)


def check_effect(patched: nn.Module, asked: str) -> None:
    """Refuse to fine-tune under a scheme that changes nothing: it has nothing to learn, and training no effect on it.

    Raises:
        BadArgument: the patch is an identity, adds no parameters, and is no recipe, which acts in training alone.
    """
    from hf_posenc.patching.state import describe, scheme_of

    report = describe(patched)
    recipe = any(part.recipe for part in scheme_of(patched).schemes)
    if report.proof.verdict == "identity" and report.parameters_added == 0 and not recipe:
        raise BadArgument(
            f"Scheme {asked} computes what the model computes already, at a target length of {report.target_length:,} "
            f"and a trained length of {report.trained_length:,}. Ask for more with --factor or --target-length."
        )


@contextmanager
def resume_hint(context: Context, resuming: bool) -> Iterator[None]:
    """If the block is interrupted, write the command that resumes it to stderr."""
    try:
        yield
    except KeyboardInterrupt:
        again = command_line(context) + ("" if resuming else " --resume")
        output.fail(f"Interrupted. The last complete checkpoint is kept; resume with: {again}")
        raise


def modules(names: Sequence[str]) -> list[str]:
    """Sources of modules of the standard library."""
    return [module_text(name) for name in names]


def show(tuned: Tuned, trained: int, out: Path, kind: str, as_json: bool) -> None:
    """Show the held-out loss before and after training, and the files written: a model or an adapter."""
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
    output.show_table(("length", "", "before", "after"), rows, title="held-out cross-entropy loss (nats/token)")
    written = f"the {kind}, curve.json"
    with suppress(MissingExtra):
        curve_plot([tuned.curve], trained, out / PLOT)
        written += f", {PLOT}"
    output.show_text(f"Written to {out}: {written}")
