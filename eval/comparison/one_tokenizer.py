"""One tokenizer for all models of a comparison: checked before the first is measured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hf_posenc.checkpoints.hub import HUB_OPTIONS
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.tokenizer import tokenizer_of
from hf_posenc.errors import BadComparison, PosEncError, shown
from hf_posenc.eval.comparison.identity import tokenizer_digest
from hf_posenc.eval.comparison.one_model import MeasuredModel


def check_one_tokenizer(models: Sequence[MeasuredModel]) -> None:
    """Refuse models whose own tokenizers differ.

    Raises:
        BadComparison: two do.
    """
    if len(models) == 1:
        return
    known = [(model.shown_name, tokenizer_digest(found)) for model in models if (found := own_tokenizer(model))]
    other = next((name for name, digest in known if digest != known[0][1]), None)
    if other is not None:
        raise BadComparison(
            f"The tokenizers of {shown(known[0][0])} and {shown(other)} differ, so that a length is another text for "
            "each. Make separate comparisons."
        )


def own_tokenizer(given: MeasuredModel) -> Any:
    """The tokenizer that belongs to a model by name; None where it is only known with the model, or cannot be loaded,
    which is reported with the model."""
    if given.tokenizer is not None or not isinstance(given.model, (str, os.PathLike)):
        return None
    arguments = given.arguments
    hub = {option: arguments[option] for option in HUB_OPTIONS if arguments.get(option) is not None}
    peft, name = arguments.get("peft"), os.fspath(given.model)
    with suppress(PosEncError, OSError, ValueError):
        return tokenizer_of(ModelName.of(peft, base=name, hub=hub) if peft else ModelName.of(name, hub=hub), **hub)
    return None
