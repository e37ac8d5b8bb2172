"""Compare several schemes on one model, cell by cell: one scheme, one task, one length.

    entries × lengths × tasks → patch → evaluate → one row of the store → … → results.json, .csv, .md and page.html

Every cell is stored as soon as it is measured; the same call again measures only what is missing. All lengths of a task
score the same target tokens, because each leaves room for the longest context before them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_posenc.core.files.free_space import check_disk_space
from hf_posenc.core.plotting.figures import require_matplotlib
from hf_posenc.eval.catalogue import check_known, check_text_used, check_trusted, expanded
from hf_posenc.eval.comparison.cell import Request, cells_of
from hf_posenc.eval.comparison.gate_cells import gate_cells
from hf_posenc.eval.comparison.identity import (
    files_digest,
    model_digest,
    to_json,
    tokenizer_digest,
    versions,
)
from hf_posenc.eval.comparison.measure import ProgressCallback, measure_cells
from hf_posenc.eval.evaluation import CAUSAL_TASKS, MASKED_TASKS, suppress_output
from hf_posenc.eval.lm.load import is_masked, language_model
from hf_posenc.eval.lm.native_length import trained_length_of
from hf_posenc.eval.report.exports import write_exports
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.gate import gate_of
from hf_posenc.eval.results.store import Store
from hf_posenc.eval.task_files import check_task_files
from hf_posenc.eval.texts.measured_text import measured_text
from hf_posenc.eval.validate import check_measure, check_tasks, folder_of_results
from hf_posenc.schemes.entry import Entry, Given, entries_of

STORE = "cells.sqlite"
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
MULTIPLES = (1, 2, 4)
"""Default lengths, as multiples of the trained length."""

PAGE, EACH = 1 << 16, 1 << 14
"""Disk space in bytes needed by the results without cells, and by each cell: its row of the store, and its share of the
files before and after they are replaced. Measured: 9,000 bytes for passkey retrieval at five depths, less for others.
"""


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
    text: Any = None,
    text_field: str = "text",
    document_separator: str | None = None,
    seed: int = 0,
    limit: int | None = None,
    include_path: str | Path | None = None,
    trust_tasks: bool = False,
    one_factor: bool = False,
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
        model: a live model; or the name of a model, a PEFT adapter or a bundled model (``starter:llama``).
        schemes: ``"yarn,self_extend:group=8,unpatched"``, or a list of names, ``(name, options)`` and entries. Of a
            model that carries a scheme, ``unpatched`` stands for the model as it is; the others take the place of that
            scheme.
        out: folder of ``cells.sqlite``, ``results.json``, ``results.csv``, ``results.md`` and ``page.html``.
        tokenizer: of a live model.
        lengths: sequence lengths in tokens; by default one, two and four times the trained length.
        tasks: lm-eval task names; by default loss and passkey retrieval.
        samples, scored, keys, depths, seed, limit, include_path, trust_tasks: as in `hf_posenc.eval.evaluate`.
        text, text_field, document_separator: likewise; read once, for all cells.
        one_factor: patch once for the longest length, as for deployment, rather than separately for each length.
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
    folder = folder_of_results(out)
    wanted, measure = check_measure(
        lengths=lengths, samples=samples, scored=scored, keys=keys, depths=depths, seed=seed, limit=limit
    )
    chosen = expanded(check_tasks(tasks, include_path))
    check_trusted(chosen, include_path, trust=trust_tasks)
    check_task_files(chosen, include_path)
    check_known(chosen, include_path)
    if text is not None:
        check_text_used(chosen)
    own_text = measured_text(text, field=text_field, separator=document_separator)
    identity = {"versions": versions(), "text": own_text.digest}
    if include_path is not None:
        identity["tasks"] = files_digest(Path(include_path), (".yaml", ".py"))
    report_progress = progress or (lambda done, doing: None)
    with Store(folder / STORE) as store:
        report_progress(0.0, "loading the model")
        with suppress_output(True):
            lm = language_model(model, tokenizer, **model_args)
        trained = trained_length_of(lm)
        wanted = wanted or [trained * multiple for multiple in MULTIPLES]
        chosen = chosen or list(MASKED_TASKS if is_masked(lm.model) else CAUSAL_TASKS)
        entries = [as_saved(entry, lm.report.get("scheme")) for entry in entries]
        identity |= {"model": model_digest(lm.model), "tokenizer": tokenizer_digest(lm.tokenizer)}
        request = Request(measure, wanted[-1], one_factor, model_args, identity)
        cells = list(cells_of(request, entries, wanted, chosen))
        gating = gate_cells(request, entries, chosen, trained)
        check_disk_space(folder, PAGE + EACH * len(gating + cells), "Results")
        passed_on = {
            **measure, "text": None if text is None else own_text, "text_field": text_field,
            "document_separator": document_separator, "include_path": include_path, "trust_tasks": trust_tasks,
        }  # fmt: skip
        measured = measure_cells(lm, gating + cells, store, request, passed_on, report_progress)
        gates, records = measured[: len(gating)], measured[len(gating) :]
        about = {
            "model": str(name or "") or shown_name(model),
            "model_scheme": lm.report.get("scheme"), "trained_length": trained, "lengths": wanted, "tasks": chosen,
            "schemes": [about_entry(entry) for entry in entries], "one_factor": one_factor, **measure,
            "text": own_text.label, "versions": identity.pop("versions"), "digests": identity,
            "command": command, "gates": [gate_of(record, trained).to_dict() for record in gates],
        }  # fmt: skip
        comparison = Comparison(about, records)
        report_progress(1.0, "writing")
        write_exports(folder, comparison)
    return comparison


def as_saved(entry: Entry, scheme: str | None) -> Entry:
    """The baseline of a model that carries a scheme: that scheme, as the checkpoint has it."""
    named = entry.scheme is None and scheme is not None
    return replace(entry, label=f"{scheme} (as saved)") if named else entry


def shown_name(model: Any) -> str:
    """A model's name as it was given; of a live model, its class."""
    return os.fspath(model) if isinstance(model, (str, os.PathLike)) else type(model).__name__


def about_entry(entry: Entry) -> dict[str, Any]:
    """Describe an entry for reports."""
    return {
        "label": entry.label, "scheme": entry.scheme, "options": to_json(entry.options),
        "needs_training": entry.needs_training(),
    }  # fmt: skip
