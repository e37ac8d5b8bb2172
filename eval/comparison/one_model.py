"""Compare schemes on one model: from the settings of a comparison to the records of its cells."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from hf_posenc.checkpoints.model_digest import model_digest
from hf_posenc.core.progress import ProgressCallback, part_of
from hf_posenc.errors import BadComparison, PosEncError, shown
from hf_posenc.eval.catalogue import task_class, task_files
from hf_posenc.eval.comparison.cell import Cell, Measuring, carried_by
from hf_posenc.eval.comparison.identity import to_json, tokenizer_digest
from hf_posenc.eval.comparison.measure import measure_cells
from hf_posenc.eval.comparison.models import MeasuredModel
from hf_posenc.eval.comparison.tune import TUNING, choose_options
from hf_posenc.eval.evaluation import default_tasks
from hf_posenc.eval.lm.load import language_model
from hf_posenc.eval.lm.measurable import trained_length_of_lm, trained_length_under
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.store import Store, key_of
from hf_posenc.eval.settings import CompareSettings
from hf_posenc.eval.task_run import check_options, suppress_output
from hf_posenc.patching.patch import scheme_set_aside
from hf_posenc.schemes.entry import Entry

MULTIPLES = (1, 2, 4)
"""Default lengths, as multiples of the trained length."""


@dataclass(frozen=True)
class Shared:
    """What all models of a comparison have in common.

    Attributes:
        settings: with the texts that were read; after the first model, with its lengths and tasks.
        identity: digests of text and tasks, and the versions.
    """

    entries: Sequence[Entry]
    settings: CompareSettings
    identity: dict[str, Any]
    store: Store


def compare_on(model: MeasuredModel, shared: Shared, progress: ProgressCallback, tokenizer: str | None) -> Comparison:
    """Measure the cells of one model that the store lacks, and return all its records.

    ``tokenizer`` is the digest of the tokenizer of the models before, which must be the same; None for the first model.
    """
    progress(0.0, "loading the model")
    with suppress_output():
        lm = language_model(model.model, model.tokenizer, **model.arguments)
    trained, carried = trained_length_of_lm(lm), lm.report.get("scheme")
    lengths = list(shared.settings.lengths) or default_lengths(lm, shared.entries, trained)
    tasks = list(shared.settings.tasks) or default_tasks(lm, shared.settings.text)
    settings = shared.settings.model_copy(update={"lengths": tuple(lengths), "tasks": tuple(tasks)})
    digests = {"model": model_digest(lm.model), "tokenizer": tokenizer_digest(lm.tokenizer)}
    measuring = Measuring(
        lm, settings, dict(model.arguments), shared.identity | digests, shared.store, carried_by(lm.model)
    )
    check_options(settings)
    for task in task_files().keys() & set(tasks):
        task_class(task).check(settings.options)
    if tokenizer not in (None, digests["tokenizer"]):
        raise BadComparison(
            f"The tokenizer of {shown(model.shown_name)} differs from the tokenizer of the models before it, so "
            "they would read different tokens. Compare them separately."
        )
    entries = list(shared.entries)
    if carried is not None:  # the baseline is this scheme
        entries = [replace(e, label=f"{carried} (as saved)") if e.scheme is None else e for e in entries]
    tuned = None
    if (text := settings.dev_text) is not None:
        tuning_progress = part_of(progress, 0.0, TUNING, "choosing options: ")
        progress = part_of(progress, TUNING, 1.0 - TUNING)
        on_text = settings.model_copy(update={"text": text})
        tuning = replace(measuring, settings=on_text, identity=measuring.identity | {"text": text.digest})
        chosen, tried = choose_options(tuning, entries, tuning_progress)
        measuring = replace(measuring, chosen=chosen)
        tuned = {"text": text.label, "options": tried}
        digests["development text"] = text.digest
    with scheme_set_aside(lm.model):
        cells = list(measuring.cells(entries))
        schemes = [about_entry(entry, cells, measuring) for entry in entries]
    records = measure_cells(measuring, cells, progress)
    identity = dict(shared.identity)
    versions = identity.pop("versions")
    about: dict[str, Any] = {
        "model": model.shown_name, "model_scheme": carried, "trained_length": trained, "lengths": lengths,
        "tasks": tasks, "schemes": schemes, "longest": measuring.longest, **settings.measure(),
        "text": None if settings.text is None else settings.text.label, "versions": versions,
    }  # fmt: skip
    if settings.options:
        about["options"] = to_json(settings.options)
    about["digests"] = {name: one if isinstance(one, str) else key_of(one) for name, one in identity.items()} | digests
    if tuned is not None:
        about["tuned"] = tuned
    return Comparison(about, records)


def default_lengths(lm: Any, entries: Sequence[Entry], trained: int) -> list[int]:
    """Default lengths within and beyond the context window of a model, in tokens.

    A scheme on top of a model's own scaling extends the length that the model reaches with this scaling, and changes
    nothing below it.

    Args:
        lm: lm-eval model object.
        entries: the schemes; a refused scheme is ignored.
        trained: length that the weights were trained on.
    """
    reaches = [trained]
    with scheme_set_aside(lm.model):
        for entry in entries:
            with suppress(PosEncError):
                reaches.append(trained if entry.scheme is None else trained_length_under(lm, entry))
    reach = max(reaches)
    return [trained, reach, 2 * reach] if reach > trained else [trained * multiple for multiple in MULTIPLES]


def about_entry(entry: Entry, cells: Sequence[Cell], measuring: Measuring) -> dict[str, Any]:
    """Describe an entry for reports: options that the comparison chose, and lengths at which it changes nothing."""
    lengths, fitted = sorted({cell.length for cell in cells}), measuring.fit(entry)
    chosen = to_json({name: value for name, value in fitted.options.items() if name not in entry.options})
    return {
        "label": entry.label, "scheme": entry.scheme, "options": to_json(entry.options),
        "chosen": {str(length): chosen for length in lengths} if chosen else {},
        "needs_training": measuring.needs_training(entry),
        "without_effect": [length for length in lengths if not measuring.has_effect(fitted, length)],
    }  # fmt: skip
