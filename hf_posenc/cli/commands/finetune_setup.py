"""Load what a fine-tuning run needs, from its options: patched model, tokenizer, texts and `Training` settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typer import Context

from hf_posenc.cli.arguments import (
    check_unread,
    lengths_of,
    loading_of,
    model_named,
    scheme_options,
    words_of,
)
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.cli.commands.finetune_options import FinetuneOptions
from hf_posenc.cli.config_file import either
from hf_posenc.cli.text_arguments import check_reading, two_sources
from hf_posenc.eval.texts.stdlib_source import HELD_OUT, TRAINING, module_text

if TYPE_CHECKING:
    from torch import nn

    from hf_posenc.checkpoints.model_name import ModelName
    from hf_posenc.texts import TextSource
    from hf_posenc.training import HeldOutSplit, Training

OF_TRAINING = (
    *("accumulate", "schedule", "warmup", "weight_decay", "rank", "alpha", "train_embeddings", "packing", "seed"),
    *("gradient_checkpointing", "bf16", "save_every", "eval_windows"),
)
"""Options that are settings of `Training`."""
OF_RECIPE = ("length", "length_stages", "attention_groups", "method", "batch", "eval_every")
"""Options that override a recipe where they are given."""


@dataclass(frozen=True)
class FinetuneSetup:
    """What a fine-tuning run, or a range test in its place, starts from."""

    model: nn.Module
    tokenizer: Any
    texts: TextSource | Sequence[str]
    held_out: TextSource | HeldOutSplit | Sequence[str]
    training: Training


def set_up(context: Context, options: FinetuneOptions, learning_rate: float | None = None) -> FinetuneSetup:
    """Check the options, then load the model and its tokenizer.

    Raises:
        BadArgument: options contradict each other, the model is a PEFT adapter, or the scheme changes nothing.
        PosEncError: a recipe, a scheme, a text or the model is refused.
    """
    from hf_posenc.checkpoints.tokenizer import tokenizer_of
    from hf_posenc.training.recipes import recipe_of

    recipe = recipe_of(options.recipe)
    scheme = recipe.scheme(options.scheme)
    named = base_model(options)
    texts, held_out = texts_of(options)
    steps, epochs = either(context, "steps", "epochs")
    given = {name: getattr(options, name) for name in OF_RECIPE}
    given |= {"steps": steps, "epochs": epochs, "learning_rate": learning_rate}
    settings: dict[str, Any] = {
        "target_modules": tuple(words_of(options.target_modules)),
        "eval_lengths": tuple(lengths_of("--eval-lengths", options.eval_lengths)),
        "report_to": tuple(words_of(options.report_to)),
        **{name: getattr(options, name) for name in OF_TRAINING},
        **{name: value for name, value in given.items() if value is not None},
    }
    check_method(context, recipe.check(**settings))
    model = load(options, named, scheme)
    training = recipe.training(model, **settings)
    return FinetuneSetup(
        model, tokenizer_of(named), texts or modules(TRAINING), held_out or measured_on(own=texts is not None), training
    )  # fmt: skip


def measured_on(*, own: bool) -> HeldOutSplit | list[str]:
    """What to measure on where no text is named: the end of the user's own training text, or other modules."""
    from hf_posenc.training import HeldOutSplit

    return HeldOutSplit(otherwise=modules(HELD_OUT)) if own else modules(HELD_OUT)


def check_method(context: Context, name: str) -> None:
    """Refuse options that the method of training has no use for, also where they repeat a default.

    Raises:
        BadArgument: there is one.
    """
    from hf_posenc.training.methods import METHODS, unused_settings

    unused = set(unused_settings(METHODS[name])) - {"train_embeddings"}  # full fine-tuning does train them
    check_unread(context, unused, f"has no effect with --method {name}. Choose --method lora, or leave it out.")


def base_model(options: FinetuneOptions) -> ModelName:
    """The model to train.

    Raises:
        BadArgument: it is a PEFT adapter.
    """
    named = model_named(options.model, options.base)
    if named.adapter is not None:
        merge = shlex.join(["hf-posenc", "merge", "--model", options.model, "--out", f"{options.model}-merged"])
        raise BadArgument(
            f"{options.model} is a PEFT adapter, and training would put another one on it. Continue its run with "
            f"--resume, or merge it first: {merge}"
        )
    return named


def texts_of(options: FinetuneOptions) -> tuple[TextSource | None, TextSource | None]:
    """The training and the held-out text; None where none is named.

    Raises:
        BadArgument: an option of reading has no text to act on.
    """
    check_reading([*(options.text or ()), *(options.held_out or ())], options.text_field, options.document_separator)
    if options.streaming and not options.text:
        raise BadArgument("--streaming reads a text while training, and none is named. Pass --text, or leave it out.")
    return two_sources(
        options.text, options.held_out, options.text_field, options.document_separator, streaming=options.streaming
    )


def modules(names: Sequence[str]) -> list[str]:
    """Sources of modules of the standard library."""
    return [module_text(name) for name in names]


def load(options: FinetuneOptions, named: ModelName, scheme: str | None) -> nn.Module:
    """Load the model, patched."""
    from hf_posenc.checkpoints.four_bit import four_bit_keywords
    from hf_posenc.checkpoints.load import from_pretrained

    loading = loading_of(named, options.dtype) | (four_bit_keywords() if options.load_in_4bit else {})
    model = from_pretrained(
        **loading, scheme=scheme, factor=options.factor, target_length=options.target_length,
        trained_length=options.trained_length, **scheme_options(scheme, options.option),
    )  # fmt: skip
    if scheme is not None:
        check_effect(model, scheme)
    return model


def check_effect(patched: nn.Module, asked: str) -> None:
    """Refuse to fine-tune under a scheme that changes nothing: it has nothing to learn, and training no effect on it.

    Raises:
        BadArgument: the patch is an identity, adds no parameters, is no recipe, which acts in training alone, and
            does not read past a position table, which the effect probe cannot compare with anything.
    """
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
