"""``hf-posenc finetune``: fine-tune a patched model at its target context length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Factor,
    Model,
    SchemeOptions,
    TargetLength,
    floating_dtype,
    of_model,
    scheme_options,
)
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.cli.commands.finetune_result import show_rate, show_result
from hf_posenc.cli.commands.finetune_setup import FOUR_BIT, base_model, check_effect, load, texts_of
from hf_posenc.cli.config_file import ConfigFile, write_config
from hf_posenc.cli.finetune_settings import Reading, run_settings
from hf_posenc.cli.next_commands import after_finetune, show_next
from hf_posenc.cli.output_paths import check_output_folder
from hf_posenc.cli.resume_hint import resume_hint
from hf_posenc.cli.text_arguments import SOURCES

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from hf_posenc.training import Tuned

TEXT, TRAINING, RESULT = "Text", "Training", "Result"
CHECKPOINT = "The last complete checkpoint is kept"
MODEL_FILES = ("config.json", "adapter_config.json")
MEASURED_ON_SOURCES = (
    "The losses are of sources of Python's standard library: --text is too short to hold out its end, or is streamed. "
    "Pass --held-out to measure on text like that trained on."
)
ELSEWHERE = (
    "eval and compare measure on sources of Python's standard library, unless --text names a text like yours that was "
    "not trained on."
)


def dtype_or_4bit(name: str | None) -> str | None:
    """Check ``--dtype``."""
    return name if name == FOUR_BIT else floating_dtype(name)


def finetune(
    context: Context,
    model: Model,
    scheme: Annotated[
        str | None, of_model("--scheme", "-s", help="Scheme to patch in first; default: the scheme of the checkpoint.")
    ] = None,
    factor: Factor = None,
    target_length: TargetLength = None,
    option: SchemeOptions = None,
    dtype: Annotated[
        str | None,
        of_model(
            callback=dtype_or_4bit,
            help="Data type of the weights, such as bfloat16, or 4bit for QLoRA; default: as stored (starters: "
            "float32).",
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        Option(help=f"Training text: {SOURCES}; default: sources of the standard library.", rich_help_panel=TEXT),
    ] = None,
    held_out: Annotated[
        list[str] | None,
        Option(
            help="Evaluation text, named likewise; default: the last 5 % of --text, or other sources of the standard "
            "library.",
            rich_help_panel=TEXT,
        ),
    ] = None,
    recipe: Annotated[
        str,
        Option(
            help="Named settings, which other options override: full_length, shifted_sparse, pose or drope.",
            rich_help_panel=TRAINING,
        ),
    ] = "full_length",
    method: Annotated[
        str | None,
        Option(
            help="lora, dora, lora_plus or full; default: lora, or as the recipe has.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    steps: Annotated[
        int | None, Option(help="Optimiser steps; default: 150, or as the recipe has.", rich_help_panel=TRAINING)
    ] = None,
    learning_rate: Annotated[
        float | None,
        Option(
            help="Peak learning rate; default: by method and size of the model, as advise prints it.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting of hf_posenc.training.Training, such as length=2k, rank=8, batch=4, seed=1, "
            "bf16=true; or text_field, document_separator, streaming, trained_length. May be repeated.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    find_learning_rate: Annotated[
        bool,
        Option(
            "--find-learning-rate",
            help="Only train 50 steps at rising learning rates, and print the run with the rate that they suggest.",
            rich_help_panel=TRAINING,
        ),
    ] = False,
    out: Annotated[
        Path, Option(help="Folder of checkpoints, loss curve and trained adapter.", rich_help_panel=RESULT)
    ] = Path("results/finetune"),
    resume: Annotated[
        bool, Option("--resume", help="Resume from the last complete checkpoint in --out.", rich_help_panel=RESULT)
    ] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a patched model at its target context length.

    The cross-entropy loss of the same last held-out tokens is measured at every length before, during and after
    training. After an interruption, the same command with --resume continues. Under `accelerate launch` the processes
    share the sequences.
    """
    from hf_posenc.checkpoints.tokenizer import tokenizer_of
    from hf_posenc.training import find_learning_rate as range_test
    from hf_posenc.training import finetune as train
    from hf_posenc.training import lengths_of
    from hf_posenc.training.recipes import recipe_of

    check_unused(out, resume)
    again = "" if resume else "--resume"
    with resume_hint(context, CHECKPOINT, again), output.progress() as show_progress:
        given, reading = run_settings(context)
        chosen = recipe_of(recipe)
        scheme = chosen.scheme(scheme)
        named = base_model(model)
        texts, measured_on = texts_of(text, held_out, reading)
        chosen.check(**given)
        lengths = {"factor": factor, "target_length": target_length, "trained_length": reading.trained_length}
        patched = load(named, scheme, lengths | scheme_options(scheme, option), dtype)
        if scheme is not None:
            check_effect(patched, scheme)
        training, tokenizer = chosen.training(patched, **given), tokenizer_of(named)
        report = lambda share, loss: show_progress(share, f"loss {loss:.3f}")  # noqa: E731
        if find_learning_rate:
            tested = range_test(patched, tokenizer, texts, training, held_out=measured_on, progress=report)
        else:
            tuned = train(
                patched, tokenizer, texts, training, held_out=measured_on, out=out, resume=resume, progress=report,
                announce=lambda start: output.note(str(start)),
                on_read=lambda read, tokens: show_progress(None, f"documents read: {read:,}, tokens: {tokens:,}"),
                callbacks=[first_process(lambda: write_config(context, out))],
            )  # fmt: skip
    if find_learning_rate:
        show_rate(tested, context, as_json)
    elif tuned.first:  # of several processes, one reports
        with resume_hint(context, CHECKPOINT, again):  # the picture is drawn last, after the losses are shown
            kind = "model" if training.method == "full" else "adapter"
            show_result(tuned, lengths_of(patched)[0], out, kind, as_json)
            if not as_json:
                show_where_to_go(tuned, out, text, held_out, reading)


def show_where_to_go(
    tuned: Tuned, out: Path, text: list[str] | None, held_out: list[str] | None, reading: Reading
) -> None:
    """Say what the losses are of, and print the commands that go on from the run."""
    if text and not held_out and not tuned.start.held_out_tokens:
        output.show_text(MEASURED_ON_SOURCES)
    if tuned.start.held_out_tokens:
        output.show_text(ELSEWHERE)
    words = [word for name in held_out or () for word in ("--text", name)]
    show_next(after_finetune(out, tuned.model, words + reading.words() if words else []))


def check_unused(out: Path, resuming: bool) -> None:
    """Refuse to mix a run with anything else in one folder.

    Raises:
        BadArgument: it holds checkpoints, and the run is not resumed; or a model, or results of another command.
    """
    from hf_posenc.checkpoints.run_checkpoints import RUN, checkpoint_folders

    check_output_folder("--out", out)
    if not (out / RUN).is_file() and any((out / name).is_file() for name in MODEL_FILES):
        raise BadArgument(f"{str(out)!r} holds a model, which the run would overwrite. Choose another --out.")
    if not resuming and checkpoint_folders(out):
        raise BadArgument(
            f"{out} holds checkpoints of an earlier run. Continue it with --resume, or name another --out."
        )


def first_process(action: Callable[[], None]) -> TrainerCallback:
    """A callback that acts once, as training begins and its folder is this run's, in one process of several."""
    from transformers import TrainerCallback

    class AtStart(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                action()

    return AtStart()
