"""Compare schemes on one model: from the settings of a comparison to the records of its cells."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_posenc.checkpoints.model_digest import model_digest
from hf_posenc.core.files.free_space import check_disk_space
from hf_posenc.core.progress import ProgressCallback
from hf_posenc.eval.comparison.cell import Cell, MeasurementRequest, cells_of
from hf_posenc.eval.comparison.combine import check_same_targets
from hf_posenc.eval.comparison.fitting import Fitting
from hf_posenc.eval.comparison.gate_cells import gate_cells
from hf_posenc.eval.comparison.identity import to_json, tokenizer_digest
from hf_posenc.eval.comparison.measure import measure_cells
from hf_posenc.eval.comparison.moved_targets import warn_of_moved_targets
from hf_posenc.eval.comparison.progress import part_of
from hf_posenc.eval.comparison.shared_options import check_read
from hf_posenc.eval.comparison.space import space_of
from hf_posenc.eval.comparison.tune import TUNING, TunedOptions, choose_options
from hf_posenc.eval.evaluation import CAUSAL_TASKS, MASKED_TASKS
from hf_posenc.eval.lm.load import language_model
from hf_posenc.eval.lm.model_kinds import is_masked
from hf_posenc.eval.lm.native_length import trained_length_of_lm
from hf_posenc.eval.quiet import suppress_output
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.costs import load_costs
from hf_posenc.eval.results.gate import gate_of
from hf_posenc.eval.results.record import key_of
from hf_posenc.eval.results.store import Store
from hf_posenc.eval.tasks.parse import longest_of
from hf_posenc.eval.texts.measured_text import MeasuredText
from hf_posenc.patching.set_aside import scheme_set_aside
from hf_posenc.schemes.entry import Entry

MULTIPLES = (1, 2, 4)
"""Default lengths, as multiples of the trained length."""


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


@dataclass(frozen=True)
class ComparisonSettings:
    """What all models of a comparison are measured with.

    Attributes:
        entries: the schemes.
        lengths: in tokens; empty for multiples of the model's trained length.
        tasks: names; empty for those of the model's kind.
        measure: settings of the tasks, as `hf_posenc.eval.evaluate` takes them.
        passed_on: its other arguments.
        factor_per_length: whether every scheme is patched anew for each length, instead of once for the longest.
        longest: tokens of text before every target; None for the longest of the lengths.
        identity: digests of text, tasks and package, and the versions.
        about: what reports say of them.
        development: text to choose options on; None for no choice.
    """

    entries: Sequence[Entry]
    lengths: Sequence[int]
    tasks: Sequence[str]
    measure: dict[str, Any]
    passed_on: dict[str, Any]
    factor_per_length: bool
    longest: int | None
    identity: dict[str, Any]
    about: dict[str, Any]
    development: MeasuredText | None = None


def compare_on(
    given: MeasuredModel,
    settings: ComparisonSettings,
    folder: Path,
    store: Store,
    progress: ProgressCallback,
    before: Sequence[Comparison] = (),
) -> Comparison:
    """Measure all cells of one model that the store does not have, and return the records of all.

    Args:
        given: the model.
        settings: of the comparison.
        folder: of the results.
        store: of finished cells.
        progress: called with the completed fraction and a description of the current step.
        before: the models that were measured, to be compared with this one.

    Raises:
        PosEncError: the model cannot be loaded or measured, or its targets are not those of the models before it.
        NoDiskSpace: the disk has less free space than the results need.
    """
    progress(0.0, "loading the model")
    with suppress_output(True):
        lm = language_model(given.model, given.tokenizer, **given.arguments)
    trained, carried = trained_length_of_lm(lm), lm.report.get("scheme")
    lengths = list(settings.lengths) or [trained * multiple for multiple in MULTIPLES]
    tasks = list(settings.tasks) or list(MASKED_TASKS if is_masked(lm.model) else CAUSAL_TASKS)
    longest = longest_of(settings.longest, lengths)
    check_read(settings.passed_on["options"], tasks, lengths, metadata_of(settings, longest, lm.tokenizer))
    entries = [as_saved(entry, carried) for entry in settings.entries]
    digests = {"model": model_digest(lm.model), "tokenizer": tokenizer_digest(lm.tokenizer)}
    fitting = Fitting.on(lm, settings.measure["seed"])
    request = MeasurementRequest(
        settings.measure, longest, settings.factor_per_length, dict(given.arguments),
        settings.identity | digests, fit=fitting.fit, computes=fitting.computes,
    )  # fmt: skip
    tuning = None
    if settings.development is not None:
        first, progress = part_of(progress, 0.0, TUNING, "choosing options: "), part_of(progress, TUNING, 1.0 - TUNING)
        tuning = tuned(lm, request, fitting, settings, entries, lengths, store, first)
        request = replace(request, fit=tuning.fit)
    with scheme_set_aside(lm.model):
        cells = list(cells_of(request, entries, lengths, tasks))
        gating = gate_cells(request, entries, tasks, trained)
        schemes = [about_entry(entry, cells, request, fitting) for entry in entries]
    check_targets(cells, before, store, request.longest)
    check_disk_space(folder, space_of(len(gating + cells), settings.measure), "Results")
    measured = measure_cells(lm, gating + cells, store, request, settings.measure | settings.passed_on, progress)
    gates, records = measured[: len(gating)], measured[len(gating) :]
    about = {
        "model": given.shown_name, "model_scheme": carried, "trained_length": trained, "lengths": lengths,
        "tasks": tasks, "schemes": schemes, "longest": request.longest,
        **settings.about, "gates": [gate_of(record, trained, given.shown_name).to_dict() for record in gates],
        "digests": text_digests(settings) | digests,
    }  # fmt: skip
    if tuning is not None and settings.development is not None:
        about["tuned"] = {"text": settings.development.label, "options": tuning.to_dict()}
        about["digests"]["development text"] = settings.development.digest
    return Comparison(about, records, load_costs(store))


def tuned(
    lm: Any,
    request: MeasurementRequest,
    fitting: Fitting,
    settings: ComparisonSettings,
    entries: Sequence[Entry],
    lengths: Sequence[int],
    store: Store,
    progress: ProgressCallback,
) -> TunedOptions:
    """Options chosen on the development text, for each scheme and length."""
    assert settings.development is not None
    on_development = replace(request, identity=request.identity | {"text": settings.development.digest})
    arguments = settings.measure | settings.passed_on | {"text": settings.development}
    return choose_options(lm, on_development, fitting, entries, lengths, arguments, store, progress)


def check_targets(cells: Sequence[Cell], before: Sequence[Comparison], store: Store, longest: int) -> None:
    """Refuse cells whose targets are not those of the models before; warn of targets that an earlier run had elsewhere.

    Raises:
        BadComparison: they are others.
    """
    elsewhere = [(record.task, record.settings) for part in before for record in part.records]
    check_same_targets([*elsewhere, *((cell.task, cell.settings) for cell in cells)])
    warn_of_moved_targets(store, cells, longest)


def text_digests(settings: ComparisonSettings) -> dict[str, str]:
    """Digests of what all models of a comparison are measured with, by name, for reports."""
    return {name: text_of(value) for name, value in settings.identity.items() if name != "versions"}


def metadata_of(settings: ComparisonSettings, longest: int, tokenizer: Any) -> dict[str, Any]:
    """What the metadata of tasks holds besides lengths and options."""
    passed = settings.passed_on
    return settings.measure | {
        "longest": longest, "text": passed["text"], "field": passed["text_field"],
        "separator": passed["document_separator"], "tokenizer": tokenizer,
    }  # fmt: skip


def text_of(digests: str | Mapping[str, Any]) -> str:
    """A digest; one of several."""
    return digests if isinstance(digests, str) else key_of(digests)


def as_saved(entry: Entry, scheme: str | None) -> Entry:
    """The baseline of a model that carries a scheme: that scheme, as the checkpoint has it."""
    named = entry.scheme is None and scheme is not None
    return replace(entry, label=f"{scheme} (as saved)") if named else entry


def about_entry(entry: Entry, cells: Sequence[Cell], request: MeasurementRequest, fitting: Fitting) -> dict[str, Any]:
    """Describe an entry for reports, with the options that the comparison chose for it at each length, and the lengths
    at which it changes nothing.
    """
    used = {cell.length: cell.entry for cell in cells if cell.entry.label == entry.label}
    chosen = {
        str(length): to_json({name: value for name, value in fitted.options.items() if name not in entry.options})
        for length, fitted in sorted(used.items())
    }
    return {
        "label": entry.label, "scheme": entry.scheme, "options": to_json(entry.options),
        "chosen": chosen if any(chosen.values()) else {}, "needs_training": fitting.needs_training(entry),
        "without_effect": [
            length for length, fitted in sorted(used.items())
            if not fitting.has_effect(fitted, request.reach(length), length)
        ],
    }  # fmt: skip
