"""Compare several schemes on one model, cell by cell: one scheme, one task, one length.

    entries × lengths × tasks → patch → evaluate → one row of the store → … → results.json, .csv, .md and page.html

Every cell is stored as soon as it is measured; repeating the call measures only missing cells. All lengths of a task
score the same target tokens, because every target has room for the longest context before it.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_posenc.core.files.paths import check_not_taken, folder_to_write
from hf_posenc.core.lazy import explained_imports
from hf_posenc.core.plotting import require_matplotlib
from hf_posenc.core.progress import ProgressCallback, part_of
from hf_posenc.core.torch_state import evaluation_mode_if_live
from hf_posenc.eval.catalogue import check_settings_read, check_tasks
from hf_posenc.eval.comparison.identity import identity_of
from hf_posenc.eval.comparison.models import MeasuredModel, check_reference, combined, models_of, reference_of
from hf_posenc.eval.comparison.one_model import Shared, compare_on
from hf_posenc.eval.comparison.tune import development_text
from hf_posenc.eval.report.exports import EXPORTS, write_exports
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.store import Store
from hf_posenc.eval.settings import CompareSettings, split
from hf_posenc.eval.texts.held_out import with_held_out
from hf_posenc.eval.texts.measured_text import measured_text
from hf_posenc.schemes.entry import Given, entries_of
from hf_posenc.texts.document import TEXT

STORE = "cells.sqlite"


@explained_imports()
def compare(
    model: Any,
    schemes: str | Sequence[Given],
    *,
    out: str | Path,
    tokenizer: Any = None,
    command: str | None = None,
    progress: ProgressCallback | None = None,
    settings: CompareSettings | None = None,
    **arguments: Any,
) -> Comparison:
    """Measure every scheme on every task at every length, and write the results into a folder.

    Finished cells are kept in ``cells.sqlite`` in that folder: after an interruption, the same call resumes. If a
    setting changes, the cells that depend on it are measured again. A refused scheme is reported with the reason, and a
    failed cell with its error; all other cells are measured.

    Args:
        model: a loaded model; or the name of a model, a PEFT adapter or a bundled model (``starter:llama``); or a list
            of these and of `MeasuredModel`, to be compared with each other.
        schemes: ``"yarn,self_extend:group=8,unpatched"``, or a list of names, ``(name, options)`` and entries. If the
            model carries a scheme, ``unpatched`` means the model as it is; the other schemes replace its scheme.
        out: folder of ``cells.sqlite``, of the results and of the page.
        tokenizer: tokenizer of loaded models.
        command: command printed in reports to repeat the comparison.
        progress: called with the completed fraction and a description of the current step.
        settings: what is measured.
        **arguments: fields of `hf_posenc.eval.settings.CompareSettings`, such as ``lengths``, ``tasks`` and
            ``against``. They replace those of ``settings``. All other arguments are passed to `PosEncLM`.

    Raises:
        PosEncError: an argument is invalid, or the folder cannot be used.
    """
    require_matplotlib()
    settings, model_args = split(CompareSettings, arguments, settings)
    entries, models = entries_of(schemes), models_of(model, tokenizer, model_args)
    if settings.against is not None:
        check_reference(settings.against, [one.shown_name for one in models], entries)
    folder = folder_of_results(out)
    settings = settings.model_copy(update={"tasks": tuple(dict.fromkeys(settings.tasks))})
    settings = with_held_out(settings, [name for one in models for name in (one.model, one.arguments.get("peft"))])
    check_tasks(settings.tasks, settings.include_path, trust=settings.trust_tasks)
    if settings.text is not None:
        check_settings_read(["text"], settings.tasks)
    only_development = settings.text is None and settings.dev_text is not None  # then the field is for that text
    text = measured_text(settings.text, field=TEXT if only_development else settings.text_field)
    texts = {
        "text": None if settings.text is None else text,
        "dev_text": development_text(settings, text) if settings.tuned else None,
    }
    settings = settings.model_copy(update=texts)
    identity = identity_of(text.digest, settings.include_path, settings.options, folder)
    report_progress = progress or (lambda done, step: None)
    with Store(folder / STORE) as store:
        comparison = combined(compare_each(models, Shared(entries, settings, identity, store), report_progress))
        against = settings.against and reference_of(comparison.about["schemes"], settings.against)
        comparison = replace(
            comparison, about=comparison.about | {"command": command, "against": against, "rank": settings.rank}
        )
        report_progress(1.0, "writing")
        write_exports(folder, comparison)
    return comparison


def compare_each(models: Sequence[MeasuredModel], shared: Shared, progress: ProgressCallback) -> list[Comparison]:
    """Compare the schemes on each model; the first model sets the default lengths and tasks of the others."""
    parts: list[Comparison] = []
    for number, model in enumerate(models):
        model_progress, tokenizer = progress, None
        if len(models) > 1:
            model_progress = part_of(progress, number / len(models), 1 / len(models), f"{model.shown_name}: ")
        if parts:
            first = parts[0].about
            of_first = {"lengths": tuple(first["lengths"]), "tasks": tuple(first["tasks"])}
            shared = replace(shared, settings=shared.settings.model_copy(update=of_first))
            tokenizer = first["digests"]["tokenizer"]
        with evaluation_mode_if_live(model.model):
            parts.append(compare_on(model, shared, model_progress, tokenizer))
        gc.collect()  # frees the memory of this model before the next one is loaded
    return parts


def folder_of_results(out: Any) -> Path:
    """Validate and return the folder of a comparison."""
    folder = Path(folder_to_write(out))
    check_not_taken(folder, EXPORTS, (STORE,))
    return folder
