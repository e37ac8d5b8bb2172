"""``hf-posenc finetune``: fine-tune a patched model at its target context length."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from typer import Context, Option

from hf_posenc.cli import arguments as cli
from hf_posenc.cli import output
from hf_posenc.cli.commands.finetune_result import (
    MEASURED_ON_SOURCES,
    after_finetune,
    resume_hint,
    show_emitted,
    show_next,
    show_rate,
    show_result,
)
from hf_posenc.cli.config_file import ConfigFile, write_config
from hf_posenc.cli.global_options import BadArgument
from hf_posenc.cli.settings import SOURCES, TEXT_FIELD, set_option, settings_of, text_sources
from hf_posenc.core.files.paths import folder_to_write

if TYPE_CHECKING:
    from torch import nn

    from hf_posenc.checkpoints.model_name import ModelName
    from hf_posenc.texts import TextSource
    from hf_posenc.training import HeldOutSplit
    from hf_posenc.training.trained_layers import RunStart


TRAINING = "Training"
of_training = partial(Option, rich_help_panel=TRAINING)
STREAMING, TRAINED_LENGTH, CARDS = "streaming", "trained_length", "cards"
Texts: TypeAlias = "TextSource | list[str]"
FOUR_BIT = "4bit"
"""Value of ``--dtype`` that loads the base model in 4 bits, for QLoRA."""


def dtype_or_4bit(name: str | None) -> str | None:
    """Check that ``--dtype`` is a floating-point dtype or ``4bit``."""
    return name if name == FOUR_BIT else cli.floating_dtype(name)


def finetune(
    context: Context,
    model: cli.Model,
    scheme: cli.OwnScheme = None,
    factor: cli.Factor = None,
    target_length: cli.TargetLength = None,
    option: cli.SchemeOptions = None,
    dtype: Annotated[
        str | None,
        cli.of_model(
            callback=dtype_or_4bit,
            help="Data type of the weights, such as bfloat16, or 4bit for QLoRA; default: as stored (starters: "
            "float32).",
        ),
    ] = None,
    text: Annotated[
        list[str] | None, cli.of_text(help=f"Training text: {SOURCES}; default: sources of the standard library.")
    ] = None,
    held_out: Annotated[
        list[str] | None,
        cli.of_text(
            help="Held-out text, in the same forms; default: the last 5 % of --text, or other sources of the standard "
            "library."
        ),
    ] = None,
    recipe: Annotated[
        str,
        of_training(help="Named settings: full_length, pose or drope; other options override them."),
    ] = "full_length",
    method: Annotated[str | None, of_training(help="lora or full; default: lora, or the recipe's.")] = None,
    steps: Annotated[int | None, of_training(help="Optimiser steps; default: 150, or the recipe's.")] = None,
    learning_rate: Annotated[
        float | None,
        of_training(help="Peak learning rate; default: by method and size of the model."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        set_option(
            "Any other setting of hf_posenc.training.Training, such as length=2k, rank=8, batch=4, seed=1, bf16=true; "
            "or text_field, streaming, trained_length; with --emit trl, cards=8 to share each row",
            TRAINING,
        ),
    ] = None,
    find_learning_rate: Annotated[
        bool,
        of_training(
            "--find-learning-rate",
            help="Train 50 steps at rising learning rates, and print the command with the suggested rate.",
        ),
    ] = False,
    out: Annotated[Path, cli.of_output(help="Folder of checkpoints, loss curve and trained adapter.")] = Path(
        "results/finetune"
    ),
    emit: Annotated[
        str | None,
        cli.of_output(help="Write the run for another framework, and train nothing: trl, axolotl or llama-factory."),
    ] = None,
    resume: Annotated[
        bool, cli.of_output("--resume", help="Resume from the last complete checkpoint in --out.")
    ] = False,
    config: ConfigFile = None,
    as_json: cli.AsJson = False,
) -> None:
    """Fine-tune a patched model at its target context length.

    The cross-entropy loss of the same last held-out tokens is measured at every length before, during and after
    training. After an interruption, the same command with --resume continues. Under `accelerate launch` the processes
    share the sequences.
    """
    from hf_posenc.checkpoints.load import four_bit_keywords, from_pretrained
    from hf_posenc.checkpoints.tokenizer import tokenizer_of
    from hf_posenc.training import Training, lengths_of
    from hf_posenc.training import find_learning_rate as range_test
    from hf_posenc.training import finetune as train
    from hf_posenc.training.emit import emit_run
    from hf_posenc.training.recipes import recipe_of
    from hf_posenc.training.run_folder import check_folder

    check_folder(Path(folder_to_write(out)), resume=resume)
    if emit is not None:
        unread = ("resume", "find_learning_rate", "held_out", "as_json")
        cli.check_unread(context, unread, "has no effect on a run that --emit writes. Leave one of the two out.")
    again = "" if resume else "--resume"
    with resume_hint(context, again), output.progress() as show_progress:
        known = Training.__dataclass_fields__
        overrides = settings_of(context, (*known, TEXT_FIELD, STREAMING, TRAINED_LENGTH, CARDS))
        overrides |= {name: value for name, value in context.params.items() if name in known and value is not None}
        trained_length = overrides.pop(TRAINED_LENGTH, None)
        streaming = overrides.pop(STREAMING, False)
        cards = cards_of(overrides.pop(CARDS, 1), emit)
        lengths = {"factor": factor, "target_length": target_length, "trained_length": trained_length}
        named_recipe = recipe_of(recipe)
        scheme = named_recipe.scheme(scheme)
        base = base_model(model)
        texts, measured_on = texts_of(text, held_out, overrides, streaming=streaming)
        named_recipe.check(**overrides)
        four_bit = dtype == FOUR_BIT
        loading = cli.loading_of(base, None if four_bit else dtype)
        if four_bit and emit is None:
            loading |= four_bit_keywords()
        patched = from_pretrained(**loading, scheme=scheme, **(lengths | cli.scheme_options(scheme, option)))
        if scheme is not None:
            check_effect(patched, scheme)
        training = named_recipe.training(patched, **overrides)
        tokenizer = tokenizer_of(base)
        if emit is not None:
            emitted = emit_run(
                emit, patched, tokenizer, texts, training, out, name=base.model, four_bit=four_bit, cards=cards
            )
            more = [] if trained_length is None else [f"trained_length={trained_length}"]
            context.params |= {"scheme": scheme, "option": [*(option or ()), *more]}
            show_emitted(emitted, out, cli.words_that_set(context, ("scheme", "factor", "target_length", "option")))
            return

        def report(share: float, loss: float) -> None:
            show_progress(share, f"loss {loss:.3f}")

        def announce_start(start: RunStart) -> None:
            output.note(str(start))
            write_config(context, out)  # the folder is this run's by now

        if find_learning_rate:
            rates = range_test(patched, tokenizer, texts, training, held_out=measured_on, progress=report)
        else:
            result = train(
                patched, tokenizer, texts, training, held_out=measured_on, out=out, resume=resume, progress=report,
                announce=announce_start,
                on_read=lambda read, tokens: show_progress(None, f"documents read: {read:,}, tokens: {tokens:,}"),
            )  # fmt: skip
    if find_learning_rate:
        show_rate(rates, context, as_json)
    elif result.first:  # of several processes, one reports
        kind = "model" if training.method == "full" else "adapter"
        show_result(result, lengths_of(patched)[0], out, kind, as_json)
        if not as_json:
            if text and not held_out and not result.start.held_out_tokens:
                output.show_text(MEASURED_ON_SOURCES)
            show_next(after_finetune(out, result.model))


def cards_of(given: Any, emit: str | None) -> int:
    """Check ``--set cards``."""
    if type(given) is not int or given < 1 or (given > 1 and emit is None):
        raise BadArgument(
            f"--set cards takes a number of at least 1 for a run of TRL, got {given!r}. Write --emit trl --set cards=8."
        )
    return given


def base_model(name: str) -> ModelName:
    """Resolve the model to train, and refuse a PEFT adapter."""
    named = cli.model_named(name)
    if named.adapter is not None:
        merge = shlex.join(["hf-posenc", "merge", "--model", name, "--out", f"{name}-merged"])
        raise BadArgument(
            f"{name} is a PEFT adapter, and training would put another one on it. Continue its run with "
            f"--resume, or merge it first: {merge}"
        )
    return named


def texts_of(
    text: Sequence[str] | None, held_out: Sequence[str] | None, settings: dict[str, Any], *, streaming: bool
) -> tuple[Texts, Texts | HeldOutSplit]:
    """Return training and held-out texts; by default the end of the user's text, or modules of the standard library."""
    from hf_posenc.eval.texts.measured_text import HELD_OUT, TRAINING, module_text
    from hf_posenc.training import HeldOutSplit

    if not isinstance(streaming, bool):
        raise BadArgument(f"--set streaming={streaming} is not true or false. Write one of the two.")
    if streaming and not text:
        raise BadArgument("streaming reads a text while training, and none is named. Pass --text, or leave it out.")
    own, measured_on = text_sources(settings, text, held_out)
    modules = [module_text(name) for name in HELD_OUT]
    if own is None:
        return [module_text(name) for name in TRAINING], measured_on or modules
    return replace(own, streaming=streaming), measured_on or HeldOutSplit(otherwise=modules)


def check_effect(patched: nn.Module, asked: str) -> None:
    """Refuse a scheme that changes nothing, because there is nothing to learn."""
    from hf_posenc.patching.state import describe, scheme_of

    report = describe(patched)
    scheme = scheme_of(patched)
    recipe = any(part.recipe for part in scheme.schemes)
    past_table = scheme.geometry.table is not None and report.target_length > scheme.geometry.table
    if report.proof.verdict == "identity" and report.parameters_added == 0 and not recipe and not past_table:
        raise BadArgument(
            f"Scheme {asked} computes what the model computes already, at a target length of {report.target_length:,} "
            f"and a trained length of {report.trained_length:,}. Ask for more with --factor or --target-length."
        )
