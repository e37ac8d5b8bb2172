"""The models of a comparison: their names, and that all of them read a text as the same tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from hf_posenc.checkpoints.hub import HUB_OPTIONS
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.tokenizer import tokenizer_of
from hf_posenc.errors import BadComparison, PosEncError, shown
from hf_posenc.eval.comparison.identity import tokenizer_digest


@dataclass(frozen=True)
class MeasuredModel:
    """A model to measure.

    Attributes:
        model: a live model, or the name of a model, a PEFT adapter or a bundled one.
        name: in reports; by default that name, or the class of a live model.
        tokenizer: of a live model.
        arguments: further arguments of `PosEncLM`.
    """

    model: Any
    name: str = ""
    tokenizer: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown_name(self) -> str:
        """The name in reports."""
        given = isinstance(self.model, (str, os.PathLike))
        return str(self.name or "") or (os.fspath(self.model) if given else type(self.model).__name__)

    def own_tokenizer(self) -> Any:
        """The tokenizer, where it is known before the model is loaded; else None."""
        if self.tokenizer is not None and not isinstance(self.tokenizer, (str, os.PathLike)):
            return self.tokenizer
        if self.tokenizer is not None or not isinstance(self.model, (str, os.PathLike)):
            return None
        hub = {option: self.arguments[option] for option in HUB_OPTIONS if self.arguments.get(option) is not None}
        with suppress(PosEncError, OSError, ValueError):  # which is reported with the model
            return tokenizer_of(ModelName.of(self.model, adapter=self.arguments.get("peft") or None, hub=hub))
        return None


def models_of(given: Any, tokenizer: Any, name: str | None, model_args: dict[str, Any]) -> list[MeasuredModel]:
    """The models to measure.

    Raises:
        BadComparison: there is none, or two have one name.
    """
    several = list(given) if isinstance(given, (list, tuple)) else [given]
    if not several or (name is not None and len(several) > 1):
        raise BadComparison(
            f"There are {len(several)} models to compare and the name {name!r}. Pass at least one model; names of "
            "several belong in MeasuredModel."
        )
    models = [
        one if isinstance(one, MeasuredModel) else MeasuredModel(one, name or "", tokenizer, model_args)
        for one in several
    ]
    names = [model.shown_name for model in models]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise BadComparison(f"Two models are called {shown(double)}. Give each a name of its own, as a MeasuredModel.")
    return models


def check_one_tokenizer(models: Sequence[MeasuredModel]) -> None:
    """Refuse models whose own tokenizers differ, before the first is loaded.

    Raises:
        BadComparison: two do.
    """
    if len(models) == 1:
        return
    known = [(one.shown_name, tokenizer_digest(found)) for one in models if (found := one.own_tokenizer())]
    other = next((name for name, digest in known if digest != known[0][1]), None)
    if other is not None:
        raise BadComparison(
            f"The tokenizers of {shown(known[0][0])} and {shown(other)} differ, so that a length is another text for "
            "each. Make separate comparisons."
        )


def short_names(names: Sequence[str]) -> dict[str, str]:
    """What labels call models: the last part of their names, or all of them where two would be called alike."""
    short = {name: PurePath(name).name or name for name in names}
    return short if len(set(short.values())) == len(names) else {name: name for name in names}
