"""Put comparisons of several models, or several runs, side by side; only what was measured on the same targets.

A line of the combined comparison is an entry on a model: ``base · yarn``, ``fine-tuned · yarn``. Where all are of one
model, lines keep their labels.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from hf_posenc.errors import BadComparison, shown
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.record import Record

SETTINGS = {
    "text": "texts", "tokenizer": "tokenizers", "tasks": "task files", "options": "options of tasks",
    "longest": "longest lengths", "measure": "settings of the tasks",
}  # fmt: skip
"""What two cells of a task must share to have the same targets, and what it is called."""
DIGESTS = ("text", "tokenizer", "tasks")
"""Those that are kept as digests, which say nothing to a reader."""


@dataclass(frozen=True)
class ComparisonLine:
    """A line of a comparison: an entry on a model, with its records."""

    model: Mapping[str, Any]
    entry: Mapping[str, Any]
    records: tuple[Record, ...]

    @property
    def identity(self) -> tuple[str, str]:
        """What no two lines share: the digest of the model, and the label that the entry has on it."""
        return self.model["digest"], self.entry["entry"]


def combined(parts: Sequence[Comparison], command: str | None) -> Comparison:
    """Combine comparisons into one.

    Raises:
        BadComparison: two were not measured on the same targets or have factors of another kind, differ in a cell, or
            name different models alike.
    """
    if len(parts) == 1:
        return replace(parts[0], about=parts[0].about | {"command": command})
    check_same_targets([(record.task, record.settings) for part in parts for record in part.records])
    check_same_factors(parts)
    lines = join_lines([line for part in parts for line in lines_of(part)])
    models = list({line.model["digest"]: line.model for line in lines}.values())
    labels = labels_of(lines, models)
    records = [
        replace(record, scheme=label) for line, label in zip(lines, labels, strict=True) for record in line.records
    ]
    schemes = [
        {**line.entry, "label": label, "model": line.model["name"], "model_digest": line.model["digest"]}
        for line, label in zip(lines, labels, strict=True)
    ]
    about = parts[0].about | {
        "model": ", ".join(model["name"] for model in models), "models": models, "schemes": schemes,
        "model_scheme": models[0]["scheme"] if len(models) == 1 else None,
        "trained_length": min(model["trained_length"] for model in models),
        "lengths": sorted({length for part in parts for length in part.about["lengths"]}),
        "tasks": list(dict.fromkeys(task for part in parts for task in part.about["tasks"])), "command": command,
    }  # fmt: skip
    if gates := [gate for part in parts for gate in part.about.get("gates", ())]:
        about["gates"] = [json.loads(gate) for gate in dict.fromkeys(json.dumps(gate) for gate in gates)]
    costs = {key: found for part in parts for key, found in part.costs.items()}
    return Comparison(shared(about) | tuning_of(parts), records, costs)


def shared(about: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a comparison, less the options tried for one model and the line that was the reference."""
    return {name: value for name, value in about.items() if name not in ("tuned", "against")}


def tuning_of(parts: Sequence[Comparison]) -> dict[str, Any]:
    """What was tried and chosen for the models of all parts, and on which texts."""
    found = [(part.about["model"], part.about["tuned"]) for part in parts if "tuned" in part.about]
    if not found:
        return {}
    texts = {json.dumps(tuned["text"]): tuned["text"] for _, tuned in found}
    named = [name for text in texts.values() for name in ([text] if isinstance(text, str) else text)]
    tried = [{"model": model, **choice} for model, tuned in found for choice in tuned["options"]]
    return {"tuned": {"text": named, "options": tried}}


def lines_of(part: Comparison) -> Iterable[ComparisonLine]:
    """The lines of a comparison, which may be a combined one."""
    about = part.about
    only = {
        "name": about["model"], "scheme": about["model_scheme"], "trained_length": about["trained_length"],
        "digest": about["digests"]["model"],
    }  # fmt: skip
    models = {model["digest"]: model for model in about.get("models", [only])}
    for scheme in about["schemes"]:
        model = models[scheme.get("model_digest", only["digest"])]
        entry = {"entry": scheme["label"], **scheme}
        yield ComparisonLine(model, entry, tuple(record for record in part.records if record.scheme == scheme["label"]))


def join_lines(lines: Iterable[ComparisonLine]) -> list[ComparisonLine]:
    """Join the lines of one entry on one model; a cell that both have counts once.

    Raises:
        BadComparison: two runs measured a cell of one label with different settings.
    """
    found: dict[tuple[str, str], ComparisonLine] = {}
    for line in lines:
        before = found.setdefault(line.identity, line)
        cells = {(record.task, record.length): record for record in before.records}
        for record in line.records:
            other = cells.setdefault((record.task, record.length), record)
            if other.key != record.key:
                raise BadComparison(
                    f"{shown(line.entry['entry'])} was measured on {record.task} at {record.length} in two runs with "
                    f"different settings: {difference(other.settings, record.settings)}. Merge only one."
                )
        found[line.identity] = replace(before, records=tuple(cells.values()))
    return list(found.values())


def labels_of(lines: Sequence[ComparisonLine], models: Sequence[Mapping[str, Any]]) -> list[str]:
    """Labels of lines: that of the entry, behind the name of its model where there are several.

    Raises:
        BadComparison: two models have one name.
    """
    names = [model["name"] for model in models]
    check_names(names)
    if len(models) == 1:
        return [line.entry["entry"] for line in lines]
    short = short_names(names)
    return [f"{short[line.model['name']]} · {line.entry['entry']}" for line in lines]


def short_names(names: Sequence[str]) -> dict[str, str]:
    """What labels call models: the last part of their names, or all of them where two would be called alike."""
    short = {name: PurePath(name).name or name for name in names}
    return short if len(set(short.values())) == len(names) else {name: name for name in names}


def check_names(names: Sequence[str]) -> None:
    """Refuse two models of one name.

    Raises:
        BadComparison: there are such.
    """
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise BadComparison(f"Two models are called {shown(double)}. Give each a name of its own, as a MeasuredModel.")


def check_same_targets(measured: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Refuse cells of one task that do not score the same targets.

    Args:
        measured: task and settings of cells, as their records have them.

    Raises:
        BadComparison: two have other texts, tokenizers, longest lengths or settings of the task.
    """
    first: dict[str, Mapping[str, Any]] = {}
    for task, settings in measured:
        other = first.setdefault(task, settings)
        for name, what in SETTINGS.items():
            if settings.get(name) != other.get(name):
                values = "" if name in DIGESTS else f": {difference(other, settings, name)}"
                raise BadComparison(
                    f"The {what} differ in {task}{values}. Numbers of different targets cannot be compared. Make "
                    "separate comparisons."
                )
        if python_of(settings) != python_of(other):
            raise BadComparison(
                f"{task} was measured with Python {python_of(other)} and {python_of(settings)}, whose standard "
                "libraries, of which default texts are made, differ. Run both with one version."
            )


def check_same_factors(parts: Sequence[Comparison]) -> None:
    """Refuse to put schemes of one factor for all lengths beside schemes that were refitted for every length.

    Raises:
        BadComparison: a table would hold both; the unpatched model has no factor and goes with either.
    """
    patched = [part for part in parts if any(scheme["scheme"] is not None for scheme in part.about["schemes"])]
    if len({part.about["factor_per_length"] for part in patched}) > 1:
        raise BadComparison(
            "One run has a factor for all lengths, the other a factor per length, so that its columns are those of "
            "different models. Run both with --factor-per-length, or both without."
        )


def python_of(settings: Mapping[str, Any]) -> Any:
    """The version of Python that a cell was measured with."""
    return settings.get("versions", {}).get("python")


def difference(one: Mapping[str, Any], two: Mapping[str, Any], name: str | None = None) -> str:
    """The first setting that two cells do not share, with both values."""
    for key in [name] if name else sorted(one.keys() | two.keys()):
        first, second = one.get(key), two.get(key)
        if isinstance(first, Mapping) and isinstance(second, Mapping) and first != second:
            return difference(first, second)
        if first != second:
            return f"{key} {shown(first)} and {shown(second)}"
    return "no setting that is recorded"
