"""Load what ``hf-posenc finetune`` needs from its options: patched model and texts."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from hf_posenc.cli.arguments import loading_of, model_named
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.cli.finetune_settings import Reading
from hf_posenc.cli.text_arguments import check_reading, two_sources
from hf_posenc.eval.texts.stdlib_source import HELD_OUT, TRAINING, module_text

if TYPE_CHECKING:
    from torch import nn

    from hf_posenc.checkpoints.model_name import ModelName
    from hf_posenc.texts import TextSource
    from hf_posenc.training import HeldOutSplit

Texts: TypeAlias = "TextSource | list[str]"
FOUR_BIT = "4bit"
"""In place of a data type: the base model is quantised, as QLoRA does."""


def base_model(name: str) -> ModelName:
    """The model to train.

    Raises:
        BadArgument: it is a PEFT adapter.
    """
    named = model_named(name)
    if named.adapter is not None:
        merge = shlex.join(["hf-posenc", "merge", "--model", name, "--out", f"{name}-merged"])
        raise BadArgument(
            f"{name} is a PEFT adapter, and training would put another one on it. Continue its run with "
            f"--resume, or merge it first: {merge}"
        )
    return named


def texts_of(
    text: Sequence[str] | None, held_out: Sequence[str] | None, reading: Reading
) -> tuple[Texts, Texts | HeldOutSplit]:
    """The text to train on, and to measure on: the end of the user's own, or modules of the standard library.

    Raises:
        BadArgument: an option of reading has no text to act on.
    """
    from hf_posenc.training import HeldOutSplit

    check_reading([*(text or ()), *(held_out or ())], reading.text_field, reading.document_separator)
    if reading.streaming and not text:
        raise BadArgument("streaming reads a text while training, and none is named. Pass --text, or leave it out.")
    own, measured_on = two_sources(
        text, held_out, reading.text_field, reading.document_separator, streaming=reading.streaming
    )
    modules = [module_text(name) for name in HELD_OUT]
    if own is None:
        return [module_text(name) for name in TRAINING], measured_on or modules
    return own, measured_on or HeldOutSplit(otherwise=modules)


def load(named: ModelName, scheme: str | None, options: Mapping[str, Any], dtype: str | None) -> nn.Module:
    """Load the model, patched."""
    from hf_posenc.checkpoints.load import four_bit_keywords, from_pretrained

    quantised = four_bit_keywords() if dtype == FOUR_BIT else {}
    loading = loading_of(named, None if dtype == FOUR_BIT else dtype) | quantised
    return from_pretrained(**loading, scheme=scheme, **options)


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
