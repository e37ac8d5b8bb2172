"""Compare several schemes on one model, cell by cell: one scheme, one task, one length.

    entries × lengths × tasks → patch → evaluate → one row of the store → … → results.json, .csv, .md and page.html

Every cell is stored as soon as it is measured; the same call again measures only what is missing. All lengths of a task
score the same target tokens, because each leaves room for the longest context before them.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_posenc.core.evaluation_mode import evaluation_mode_if_live
from hf_posenc.core.lazy import explained_imports
from hf_posenc.core.plotting.figures import require_matplotlib
from hf_posenc.core.progress import ProgressCallback
from hf_posenc.errors import BadComparison
from hf_posenc.eval.catalogue import check_files_named, check_known, check_text_used, check_trusted, without_groups
from hf_posenc.eval.comparison.combine import check_names, combined
from hf_posenc.eval.comparison.identity import files_digest, package_digest, to_json, versions
from hf_posenc.eval.comparison.one_model import ComparisonSettings, MeasuredModel, compare_on
from hf_posenc.eval.comparison.one_tokenizer import check_one_tokenizer
from hf_posenc.eval.comparison.progress import part_of
from hf_posenc.eval.comparison.reference import check_names_model, compared_with, reference_of
from hf_posenc.eval.comparison.shared_options import check_no_arguments, options_identity
from hf_posenc.eval.comparison.tune import check_apart
from hf_posenc.eval.report.exports import write_exports
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.store import Store
from hf_posenc.eval.task_files import check_task_files
from hf_posenc.eval.texts.measured_text import TextToMeasure, measured_text
from hf_posenc.eval.validate import (
    SharedOptions,
    check_measure,
    check_options,
    check_tasks,
    folder_of_results,
    take_settings,
)
from hf_posenc.schemes.entry import Given, entries_of

STORE = "cells.sqlite"
TASK_FILES = (".yaml", ".yml", ".py", ".json", ".jsonl", ".csv", ".tsv", ".txt", ".parquet")
"""Endings of the files in a folder of tasks that numbers may depend on: tasks, their code and their data."""
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


@explained_imports()
def compare(
    model: Any,
    schemes: str | Sequence[Given],
    *,
    out: str | Path,
    tokenizer: Any = None,
    lengths: Sequence[int] | None = None,
    tasks: Sequence[str] | None = None,
    samples: int = 16,
    scored: int = 64,
    keys: int = 8,
    depths: Sequence[float] = DEPTHS,
    text: TextToMeasure = None,
    text_field: str = "text",
    document_separator: str | None = None,
    seed: int = 0,
    limit: int | None = None,
    include_path: str | Path | None = None,
    trust_tasks: bool = False,
    factor_per_length: bool = False,
    longest: int | None = None,
    against: str | None = None,
    dev_text: TextToMeasure = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    command: str | None = None,
    progress: ProgressCallback | None = None,
    **model_args: Any,
) -> Comparison:
    """Measure every scheme on every task at every length, and write the results into a folder.

    Finished cells are kept in ``cells.sqlite`` in that folder: after an interruption, the same call resumes; with any
    other setting, cells are measured again. A scheme that is refused for the model is reported with the reason, a cell
    that fails with its error, and the other cells are measured.

    Args:
        model: a live model; or the name of a model, a PEFT adapter or a bundled model (``starter:llama``); or a list of
            these and of `MeasuredModel`, to be compared with each other.
        schemes: ``"yarn,self_extend:group=8,unpatched"``, or a list of names, ``(name, options)`` and entries. Of a
            model that carries a scheme, ``unpatched`` stands for the model as it is; the others take the place of that
            scheme.
        out: folder of ``cells.sqlite``, ``results.json``, ``results.csv``, ``results.md``, ``page.html``,
            ``effective.csv``, ``costs.csv``, and ``documents.jsonl`` with the scores of single documents.
        tokenizer: of live models.
        lengths: sequence lengths in tokens; by default one, two and four times the trained length of the first model.
        tasks: lm-eval task names; by default loss and passkey retrieval.
        samples, scored, keys, depths, seed, limit, include_path, trust_tasks: as in `hf_posenc.eval.evaluate`.
        text, text_field, document_separator: likewise; read once, for all cells.
        factor_per_length: patch anew for each length, with factor = length / trained length. By default every scheme
            is patched once, for the longest length (for ``longest``, where it is given), as a deployed model is, and
            that one model is measured at all lengths.
        longest: context in tokens available before every target; by default the longest of the lengths. With the same
            value, a length that is added later is measured on the same targets, and only it.
        against: label of a line; the others are compared with it, document by document, and tables mark what is surely
            better or worse. Where only one line has a scheme, the name of the scheme will do.
        dev_text: a text to choose options on, read as ``text`` is: for each scheme and length, those of a small grid
            with the lowest loss, and never on the measured text. By default no options are chosen but those of
            `Scheme.comparison_options`.
        options: further options of tasks, such as ``data``, the files of tasks that read records, or ``scoring``;
            settings of a sweep among them take the place of the arguments of these names.
        name: name of the model in reports.
        command: command printed in reports to repeat the comparison.
        progress: called with the completed fraction and a description of the current step.
        **model_args: further arguments of `PosEncLM`.

    Raises:
        PosEncError: an argument is invalid, or the folder cannot be used.
        NoDiskSpace: the disk has less free space than the results need.
    """
    require_matplotlib()
    entries = entries_of(schemes)
    models = models_of(model, tokenizer, name, model_args)
    if against is not None and len(models) == 1:
        reference_of([{"label": entry.label, "scheme": entry.scheme} for entry in entries], against)
    elif against is not None:  # their labels are known when all are loaded, their beginnings before
        check_names_model(against, [model.shown_name for model in models], entries[0].label)
    check_one_tokenizer(models)
    folder = folder_of_results(out)
    given = check_options(options)
    sweep = take_settings(given, {
        "lengths": lengths, "samples": samples, "scored": scored, "keys": keys, "depths": depths, "seed": seed,
        "longest": longest,
    })  # fmt: skip
    wanted, measure = check_measure(limit=limit, **sweep)
    check_no_arguments(given)
    chosen = without_groups(check_tasks(tasks, include_path))
    check_trusted(chosen, include_path, trust=trust_tasks)
    check_task_files(chosen, include_path)
    check_known(chosen, include_path)
    check_files_named(chosen, given)
    if text is not None:
        check_text_used(chosen)
    reading: dict[str, Any] = {"field": text_field, "separator": document_separator}
    own_text = measured_text(text, **({} if text is None and dev_text is not None else reading))
    development = None if dev_text is None else measured_text(dev_text, **reading)
    if development is not None:
        check_apart(own_text, development)
    identity = identity_of(own_text.digest, include_path, given, folder)
    settings = ComparisonSettings(
        entries=entries, lengths=wanted, tasks=chosen, measure=measure, factor_per_length=factor_per_length,
        longest=sweep["longest"], identity=identity,
        passed_on={
            "text": None if text is None else own_text, "text_field": text_field,
            "document_separator": document_separator, "include_path": include_path, "trust_tasks": trust_tasks,
            "options": SharedOptions(given),
        },
        about={
            "factor_per_length": factor_per_length, **measure, "text": own_text.label, "versions": identity["versions"],
            "command": command, **({"options": to_json(given)} if given else {}),
        },
        development=development,
    )  # fmt: skip
    report_progress = progress or (lambda done, doing: None)
    with Store(folder / STORE) as store:
        parts = compare_each(models, settings, folder, store, report_progress)
        comparison = compared_with(combined(parts, command), against)
        report_progress(1.0, "writing")
        write_exports(folder, comparison)
    return comparison


def identity_of(text: str, include_path: str | Path | None, options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What every number of a comparison depends on, besides its own cell; files in the results ``folder`` are left out.

    Args:
        text: digest of the measured text.
        include_path: folder of further task files.
        options: further options of tasks.
        folder: of the results, which may lie in ``include_path``.
    """
    identity: dict[str, Any] = {"versions": versions(), "package": package_digest(), "text": text}
    if include_path is not None:
        identity["tasks"] = files_digest(Path(include_path), TASK_FILES, without=folder)
    if options:
        identity["options"] = options_identity(options, without=folder)
    return identity


def compare_each(
    models: Sequence[MeasuredModel],
    settings: ComparisonSettings,
    folder: Path,
    store: Store,
    progress: ProgressCallback,
) -> list[Comparison]:
    """Compare the schemes on each model, with the lengths and tasks of the first where none are given."""
    parts: list[Comparison] = []
    for number, model in enumerate(models):
        share = progress
        if len(models) > 1:
            share = part_of(progress, number / len(models), 1 / len(models), f"{model.shown_name}: ")
        with evaluation_mode_if_live(model.model):
            parts.append(compare_on(model, settings, folder, store, share, parts))
        settings = replace(settings, lengths=parts[0].about["lengths"], tasks=parts[0].about["tasks"])
        gc.collect()  # its memory is for the next one
    return parts


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
    check_names([model.shown_name for model in models])
    return models
