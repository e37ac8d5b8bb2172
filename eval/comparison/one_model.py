"""Compare schemes on one model: from the settings of a comparison to the records of its cells."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from hf_posenc.checkpoints.model_digest import model_digest
from hf_posenc.core.progress import ProgressCallback
from hf_posenc.errors import BadComparison, PosEncError, UnreadableDocuments, shown
from hf_posenc.eval.catalogue import FILE_TASKS, own_tasks
from hf_posenc.eval.comparison.cell import Cell, Fitting, MeasurementRequest
from hf_posenc.eval.comparison.identity import to_json, tokenizer_digest
from hf_posenc.eval.comparison.measure import measure_cells, part_of
from hf_posenc.eval.comparison.models import MeasuredModel
from hf_posenc.eval.comparison.tune import TUNING, choose_options
from hf_posenc.eval.errors import TaskOptionOutOfRange
from hf_posenc.eval.evaluation import default_tasks
from hf_posenc.eval.lm.load import language_model
from hf_posenc.eval.lm.measurable import trained_length_of_lm, trained_length_under
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.effective_length import gate_of
from hf_posenc.eval.results.store import Store, key_of
from hf_posenc.eval.settings import CompareSettings
from hf_posenc.eval.task_run import SharedOptions, load_tasks, refuse_unread, suppress_output
from hf_posenc.eval.tasks.sweep import longest_of
from hf_posenc.eval.texts.measured_text import MeasuredText
from hf_posenc.patching.patch import scheme_set_aside
from hf_posenc.schemes.entry import Entry

MULTIPLES = (1, 2, 4)
"""Default lengths, as multiples of the trained length."""


@dataclass(frozen=True)
class Shared:
    """What all models of a comparison are measured with.

    Attributes:
        entries: the schemes.
        settings: with the lengths and tasks of the first model, once they are known.
        text: the measured text; None for the default text.
        development: text to choose options on; None for no choice.
        identity: digests of text and tasks, and the versions.
        store: of finished cells.
    """

    entries: Sequence[Entry]
    settings: CompareSettings
    text: MeasuredText | None
    development: MeasuredText | None
    identity: dict[str, Any]
    store: Store

    @property
    def measure(self) -> dict[str, Any]:
        """Settings of the tasks that can be part of a cell's key."""
        return self.settings.sweep() | {"limit": self.settings.limit}

    def evaluated(self, text: MeasuredText | None) -> dict[str, Any]:
        """Arguments of `hf_posenc.eval.evaluate` that all cells on a text share."""
        own = self.settings
        return self.measure | {
            "text": text, "text_field": own.text_field, "document_separator": own.document_separator,
            "include_path": own.include_path, "trust_tasks": own.trust_tasks, "options": SharedOptions(own.options),
        }  # fmt: skip


def compare_on(given: MeasuredModel, shared: Shared, progress: ProgressCallback, tokenizer: str | None) -> Comparison:
    """Measure all cells of one model that the store does not have, and return the records of all.

    Args:
        given: the model.
        shared: what all models are measured with.
        progress: called with the completed fraction and a description of the current step.
        tokenizer: digest of that of the models before this one; None for the first.

    Raises:
        PosEncError: the model cannot be loaded or measured, or has another tokenizer.
    """
    settings, store = shared.settings, shared.store
    progress(0.0, "loading the model")
    with suppress_output(True):
        lm = language_model(given.model, given.tokenizer, **given.arguments)
    trained, carried = trained_length_of_lm(lm), lm.report.get("scheme")
    lengths = list(settings.lengths) or default_lengths(lm, shared.entries, trained)
    tasks = list(settings.tasks) or default_tasks(lm, shared.text)
    longest = longest_of(settings.longest, lengths)
    check_read(shared, tasks, lengths, longest, lm.tokenizer)
    entries = [as_saved(entry, carried) for entry in shared.entries]
    digests = {"model": model_digest(lm.model), "tokenizer": tokenizer_digest(lm.tokenizer)}
    if tokenizer not in (None, digests["tokenizer"]):
        raise BadComparison(
            f"The tokenizer of {shown(given.shown_name)} differs from that of the models before it, so that a length "
            "is another text for each. Make separate comparisons."
        )
    request = MeasurementRequest(
        shared.measure, longest, settings.factor_per_length, dict(given.arguments),
        shared.identity | digests, Fitting.on(lm, settings.seed), fresh=settings.fresh,
    )  # fmt: skip
    tuned = {}
    if shared.development is not None:
        first, progress = part_of(progress, 0.0, TUNING, "choosing options: "), part_of(progress, TUNING, 1.0 - TUNING)
        fitting, tried = choose_options(
            replace(request, identity=request.identity | {"text": shared.development.digest}), entries, lengths,
            shared.evaluated(shared.development), store, first, settings.budget,
        )  # fmt: skip
        request = replace(request, fitting=fitting)
        tuned = {"tuned": {"text": shared.development.label, "options": tried}}
        digests["development text"] = shared.development.digest
    with scheme_set_aside(lm.model):
        cells, gating = list(request.cells(entries, lengths, tasks)), request.gates(entries, tasks, trained)
        schemes = [about_entry(entry, cells, request) for entry in entries]
    measured = measure_cells(lm, gating + cells, store, request, shared.evaluated(shared.text), progress)
    gates, records = measured[: len(gating)], measured[len(gating) :]
    named = {name: value for name, value in shared.identity.items() if name != "versions"}
    about = {
        "model": given.shown_name, "model_scheme": carried, "trained_length": trained, "lengths": lengths,
        "tasks": tasks, "schemes": schemes, "longest": longest, "factor_per_length": settings.factor_per_length,
        **shared.measure, "text": None if shared.text is None else shared.text.label,
        "versions": shared.identity["versions"],
        **({"options": to_json(settings.options)} if settings.options else {}),
        "gates": [asdict(gate_of(record, trained, given.shown_name)) for record in gates],
        "digests": {name: one if isinstance(one, str) else key_of(one) for name, one in named.items()} | digests,
        **tuned,
    }  # fmt: skip
    return Comparison(about, records)


def default_lengths(lm: Any, entries: Sequence[Entry], trained: int) -> list[int]:
    """Lengths that show a model within what it reads and beyond, in tokens.

    Schemes on top of a model's own scaling count from the length that it reaches with that. They change nothing before.

    Args:
        lm: lm-eval model object.
        entries: the schemes; those that are refused are not asked.
        trained: what the weights were trained on.
    """
    counted = [trained]
    with scheme_set_aside(lm.model):
        for entry in entries:
            with suppress(PosEncError):
                counted.append(trained if entry.scheme is None else trained_length_under(lm, entry))
    reach = max(counted)
    return [trained, reach, 2 * reach] if reach > trained else [trained * multiple for multiple in MULTIPLES]


def check_read(shared: Shared, tasks: Sequence[str], lengths: Sequence[int], longest: int, tokenizer: Any) -> None:
    """Refuse options that no task reads, before any cell is measured; tasks that are not ours may use any.

    Raises:
        UnknownOption: no task reads one.
        BadComparison: with these options none reads the text.
        PosEncError: an option is wrong, or a task cannot be measured at any of the lengths.
    """
    own = shared.settings
    if not (own.options or set(tasks) & set(FILE_TASKS)) or not set(tasks) <= set(own_tasks()):
        return
    metadata = shared.measure | {
        "longest": longest, "text": shared.text, "field": own.text_field, "separator": own.document_separator,
        "tokenizer": tokenizer, **own.options,
    }  # fmt: skip
    with suppress_output(True):
        loaded = [task for name in tasks for task in loaded_task(name, lengths, metadata)]
    refuse_unread(own.options, loaded, text=shared.text is not None)


def loaded_task(name: str, lengths: Sequence[int], metadata: dict[str, Any]) -> list[Any]:
    """A task at the longest length at which it can be measured; the cells of other lengths say why they cannot."""
    for length in sorted(lengths, reverse=True):
        try:
            return list(load_tasks([name], metadata | {"lengths": [length]}, None)["tasks"].values())
        except PosEncError as error:
            if isinstance(error, (UnreadableDocuments, TaskOptionOutOfRange)) or length == min(lengths):
                raise
    return []


def as_saved(entry: Entry, scheme: str | None) -> Entry:
    """The baseline of a model that carries a scheme: that scheme, as the checkpoint has it."""
    named = entry.scheme is None and scheme is not None
    return replace(entry, label=f"{scheme} (as saved)") if named else entry


def about_entry(entry: Entry, cells: Sequence[Cell], request: MeasurementRequest) -> dict[str, Any]:
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
        "chosen": chosen if any(chosen.values()) else {}, "needs_training": request.fitting.needs_training(entry),
        "without_effect": [
            length for length, fitted in sorted(used.items())
            if not request.fitting.has_effect(fitted, request.reach(length), length)
        ],
    }  # fmt: skip
