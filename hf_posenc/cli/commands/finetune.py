"""``hf-posenc finetune``: fine-tune a patched model at its target context length."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Base,
    Dtype,
    Factor,
    Model,
    PushToHub,
    SchemeOptions,
    TargetLength,
    command_line,
    loading_of,
    model_named,
    scheme_options,
    tokenizer_of,
    whole_numbers,
    words_of,
)
from hf_posenc.cli.commands.finetune_result import show_result
from hf_posenc.cli.config_file import ConfigFile, either, write_config
from hf_posenc.cli.errors import BadArgument
from hf_posenc.cli.next_commands import after_finetune, show_next
from hf_posenc.cli.text_arguments import FIELD, SOURCES, DocumentSeparator, TextField, check_reading, two_sources
from hf_posenc.eval.texts.stdlib_source import HELD_OUT, TRAINING, module_text

if TYPE_CHECKING:
    from torch import nn
    from transformers import TrainerCallback


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
    recipe: Annotated[
        str, Option(help="Named settings, which other options override: full_length, growing_length, pose or drope.")
    ] = "full_length",
    length: Annotated[
        int | None, Option(min=2, help="Training sequence length in tokens; default: as the recipe has.")
    ] = None,
    length_stages: Annotated[
        int | None, Option(min=1, help="Stages in which training sequences double in length up to that.")
    ] = None,
    steps: Annotated[int | None, Option(min=1, help="Optimiser steps; default: 150, or as the recipe has.")] = None,
    epochs: Annotated[float | None, Option(help="Times that the training text is read, instead of --steps.")] = None,
    method: Annotated[str | None, Option(help="lora (default), dora, lora_plus, ia3, prompt, prefix or full.")] = None,
    batch: Annotated[
        int | None, Option(min=1, help="Sequences per process and forward pass; default: 1, or as the recipe has.")
    ] = None,
    accumulate: Annotated[int, Option(min=1, help="Batches per optimiser step.")] = 1,
    learning_rate: Annotated[
        float | None, Option(help="Peak learning rate; default: by method and size of the model, as advise prints it.")
    ] = None,
    schedule: Annotated[
        str, Option(help="Of the learning rate: cosine, linear, constant_with_warmup or inverse_sqrt.")
    ] = "cosine",
    warmup: Annotated[float, Option(help="Share of the steps before the peak learning rate.")] = 0.1,
    weight_decay: Annotated[float, Option(help="Of AdamW.")] = 0.0,
    rank: Annotated[int, Option(min=1, help="Rank of LoRA's matrices; for prompt and prefix, virtual tokens.")] = 16,
    alpha: Annotated[float | None, Option(help="Of LoRA, scaled by alpha / rank; default: twice the rank.")] = None,
    target_modules: Annotated[
        list[str] | None, Option(help="Linear layers that get LoRA matrices, as in q_proj,v_proj; default: all.")
    ] = None,
    train_embeddings: Annotated[
        bool,
        Option(
            "--train-embeddings/--no-train-embeddings",
            help="Train the input embeddings beside LoRA's matrices; of an 8B model they are most of what is trained.",
        ),
    ] = True,
    packing: Annotated[
        str, Option(help="joined: a document attends to those packed before it. separate: it does not.")
    ] = "joined",
    seed: Annotated[int, Option(min=0)] = 0,
    gradient_checkpointing: Annotated[bool, Option("--gradient-checkpointing", help="Less memory, more time.")] = False,
    bf16: Annotated[bool, Option("--bf16", help="Compute in bfloat16.")] = False,
    save_every: Annotated[int, Option(min=1, help="Steps between checkpoints.")] = 20,
    eval_every: Annotated[
        int | None, Option(min=1, help="Steps between measurements; default: half of the steps.")
    ] = None,
    eval_windows: Annotated[int, Option(min=1, help="Windows of held-out text at each length.")] = 32,
    eval_lengths: Annotated[
        list[str] | None,
        Option(help="Lengths in tokens, as in 256,512; default: the trained length, doubled up to the target."),
    ] = None,
    report_to: Annotated[
        list[str] | None, Option(help="Experiment tracker, such as trackio, wandb or tensorboard; may be repeated.")
    ] = None,
    out: Annotated[Path, Option(help="Folder of checkpoints, loss curve and trained adapter.")] = Path(
        "results/finetune"
    ),
    push_to_hub: PushToHub = None,
    resume: Annotated[bool, Option("--resume", help="Resume from the last complete checkpoint in --out.")] = False,
    base: Base = None,
    load_in_4bit: Annotated[
        bool, Option("--load-in-4bit", help="Quantise the base model to 4 bits (QLoRA); needs bitsandbytes.")
    ] = False,
    dtype: Dtype = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a patched model at its target context length.

    The cross-entropy loss of the same last held-out tokens is measured at every length before, during and after
    training. After an interruption, the same command with --resume continues. Under `accelerate launch` the processes
    share the sequences.
    """
    from hf_posenc.checkpoints.four_bit import four_bit_keywords
    from hf_posenc.checkpoints.load import from_pretrained
    from hf_posenc.checkpoints.push import check_upload, upload
    from hf_posenc.checkpoints.run_checkpoints import checkpoint_folders
    from hf_posenc.training import finetune as train
    from hf_posenc.training import lengths_of
    from hf_posenc.training.recipes import recipe_of

    way = recipe_of(recipe)
    steps, epochs = either(context, "steps", "epochs")
    scheme = way.scheme(scheme)
    if not resume and checkpoint_folders(out):
        raise BadArgument(
            f"{out} holds checkpoints of an earlier run. Continue it with --resume, or name another --out."
        )
    named = model_named(model, base)
    if named.adapter is not None:
        raise BadArgument(
            f"{model} is a PEFT adapter, and training would put another one on it. Continue its run with --resume, or "
            f"merge it first: {shlex.join(['hf-posenc', 'merge', '--model', model, '--out', f'{model}-merged'])}"
        )
    if push_to_hub is not None:
        check_upload(push_to_hub)
    check_reading([*(text or ()), *(held_out or ())], text_field, document_separator)
    if streaming and not text:
        raise BadArgument("--streaming reads a text while training, and none is named. Pass --text, or leave it out.")
    texts, measured_on = two_sources(text, held_out, text_field, document_separator, streaming=streaming)
    with resume_hint(context, resume), output.progress() as show_progress:
        patched = from_pretrained(
            **(loading_of(named, dtype) | (four_bit_keywords() if load_in_4bit else {})), scheme=scheme, factor=factor,
            target_length=target_length, trained_length=trained_length, **scheme_options(scheme, option),
        )  # fmt: skip
        if scheme is not None:
            check_effect(patched, scheme)
        chosen = {
            "length": length, "length_stages": length_stages, "steps": steps, "epochs": epochs, "method": method,
            "batch": batch, "learning_rate": learning_rate, "eval_every": eval_every,
        }  # fmt: skip
        training = way.training(
            patched, accumulate=accumulate, schedule=schedule, warmup=warmup, weight_decay=weight_decay, rank=rank,
            alpha=alpha, target_modules=tuple(words_of(target_modules)), train_embeddings=train_embeddings,
            packing=packing, seed=seed, gradient_checkpointing=gradient_checkpointing, bf16=bf16, save_every=save_every,
            eval_windows=eval_windows, eval_lengths=tuple(whole_numbers("--eval-lengths", eval_lengths)),
            report_to=tuple(words_of(report_to)),
            **{name: value for name, value in chosen.items() if value is not None},
        )  # fmt: skip
        tuned = train(
            patched, tokenizer_of(named), texts or modules(TRAINING), training,
            held_out=measured_on or modules(HELD_OUT), output=out, resume=resume,
            announce=lambda start: output.note(str(start)),
            on_read=lambda documents, tokens: show_progress(None, f"read {documents:,} documents, {tokens:,} tokens"),
            progress=lambda share, loss: show_progress(share, f"loss {loss:.3f}"),
            callbacks=[first_process(lambda: write_config(context, out))],
        )  # fmt: skip
    if tuned.first:  # of several processes, one reports
        if push_to_hub is not None:
            output.note(f"Uploaded to {upload(out, push_to_hub)}")
        show_result(tuned, lengths_of(patched)[0], out, "model" if training.method == "full" else "adapter", as_json)
        if not as_json:
            show_next(after_finetune(out, tuned.model))


def first_process(action: Callable[[], None]) -> TrainerCallback:
    """A callback that acts once, as training begins and its folder is this run's, in one process of several."""
    from transformers import TrainerCallback

    class AtStart(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                action()

    return AtStart()


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
