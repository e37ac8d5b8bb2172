"""Models and lines of a comparison: their names, the reference line, and comparisons of several models as one.

If several models are compared, a line is one entry on one model: ``base · yarn``, ``fine-tuned · yarn``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from hf_posenc.errors import BadComparison, nearest, shown
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.store import Record
from hf_posenc.schemes.entry import UNPATCHED, Entry


@dataclass(frozen=True)
class MeasuredModel:
    """A model to measure.

    Attributes:
        model: a loaded model, or the name of a model, a PEFT adapter or a bundled one.
        name: name in reports; by default the name of the model, or the class of a loaded model.
        tokenizer: tokenizer of a loaded model.
        arguments: further arguments of `PosEncLM`.
    """

    model: Any
    name: str = ""
    tokenizer: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown_name(self) -> str:
        """The name in reports."""
        has_name = isinstance(self.model, (str, os.PathLike))
        return str(self.name or "") or (os.fspath(self.model) if has_name else type(self.model).__name__)


def models_of(model: Any, tokenizer: Any, model_args: dict[str, Any]) -> list[MeasuredModel]:
    """The models to measure: ``model``, or each model of a list."""
    listed = list(model) if isinstance(model, (list, tuple)) else [model]
    if not listed:
        raise BadComparison("There is no model to compare. Pass one.")
    models = [
        one if isinstance(one, MeasuredModel) else MeasuredModel(one, "", tokenizer, model_args) for one in listed
    ]
    names = [model.shown_name for model in models]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise BadComparison(
            f"Two models are called {shown(duplicate)}. Give each a name of its own, as a MeasuredModel."
        )
    return models


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Names of models in labels: the last part of each name, or the full names if two last parts are equal."""
    short = {name: PurePath(name).name or name for name in names}
    return short if len(set(short.values())) == len(names) else {name: name for name in names}


def combined(parts: Sequence[Comparison]) -> Comparison:
    """Combine the comparisons that one run made of several models, on the same text with the same tokenizer."""
    if len(parts) == 1:
        return parts[0]
    names = [part.about["model"] for part in parts]
    short = short_names(names)
    models: list[dict[str, Any]] = []
    schemes: list[dict[str, Any]] = []
    records: list[Record] = []
    for name, part in zip(names, parts, strict=True):
        digest = part.about["digests"]["model"]
        own = {"scheme": part.about["model_scheme"], "trained_length": part.about["trained_length"]}
        models.append({"name": name, **own, "digest": digest})
        for one in part.about["schemes"]:
            label = f"{short[name]} · {one['label']}"
            schemes.append({"entry": one["label"], **one, "label": label, "model": name, "model_digest": digest})
        records += [replace(record, scheme=f"{short[name]} · {record.scheme}") for record in part.records]
    about = parts[0].about | {
        "model": ", ".join(names), "models": models, "schemes": schemes, "model_scheme": None,
        "trained_length": min(model["trained_length"] for model in models),
    }  # fmt: skip
    if "tuned" in about:
        tried = [{"model": part.about["model"], **one} for part in parts for one in part.about["tuned"]["options"]]
        about["tuned"] = about["tuned"] | {"options": tried}
    return Comparison(about, records)


def check_reference(against: str, names: Sequence[str], entries: Sequence[Entry]) -> None:
    """Refuse a reference that no line will have; for several models, only the model in the label can be checked yet."""
    if len(names) == 1:
        reference_of([{"label": entry.label, "scheme": entry.scheme} for entry in entries], against)
        return
    short = short_names(names).values()
    if not any(against.startswith(f"{name} · ") for name in short):
        raise BadComparison(
            f"against is {shown(against)}, which names no model, and several are compared: {', '.join(short)}. "
            f"Name the model too, as in {f'{next(iter(short))} · {entries[0].label}'!r}."
        )


def reference_of(schemes: Sequence[Mapping[str, Any]], against: str) -> str:
    """Label of the reference: ``against`` itself, or the label of the only line with the scheme of that name."""
    labels = [scheme["label"] for scheme in schemes]
    by_scheme = [s["label"] for s in schemes if (s["scheme"] or UNPATCHED) == against]
    matching = [against] if against in labels else by_scheme
    if len(matching) != 1:
        raise BadComparison(
            f"against is {shown(against)}, and the schemes are {', '.join(labels)}.{nearest(str(against), labels)} "
            "Choose one of them."
        )
    if len(labels) < 2:
        raise BadComparison(f"Only {labels[0]} is measured, so there is nothing to compare it with. Add a scheme.")
    return str(matching[0])
