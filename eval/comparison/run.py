"""Several schemes on one model, measured cell by cell: a scheme, a task, a length.

    entries × lengths × tasks → patch → evaluate → one row of the store → … → results.json, .csv, .md and page.html

A cell is kept the moment it is done. The same call again measures what is missing, and nothing else. All lengths of a
task meet the same targets, because each keeps the longest length free before them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, TypeGuard

import torch

from hf_posenc.core.files.free_space import check_disk_space
from hf_posenc.core.plotting.figures import require_matplotlib
from hf_posenc.errors import PosEncError
from hf_posenc.eval.catalogue import check_known, check_trusted, expanded
from hf_posenc.eval.comparison.cell import Cell, Request, cells_of
from hf_posenc.eval.comparison.identity import (
    files_digest,
    model_digest,
    plain,
    text_digest,
    tokenizer_digest,
    versions,
)
from hf_posenc.eval.comparison.progress import RemainingTime
from hf_posenc.eval.evaluation import (
    CAUSAL_TASKS,
    MASKED_TASKS,
    evaluate,
    is_masked,
    language_model,
    suppress_output,
)
from hf_posenc.eval.lm.native_length import check_reach, trained_length_of
from hf_posenc.eval.report.exports import write_exports
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.store import Record, State, Store
from hf_posenc.eval.task_files import check_task_files
from hf_posenc.eval.validate import check_measure, check_tasks, folder_of_results
from hf_posenc.patching.patch import patch_model, unpatch_model
from hf_posenc.schemes.entry import Entry, Given, entries_of

STORE = "cells.sqlite"
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
MULTIPLES = (1, 2, 4)
"""Of the trained length, where no lengths are given."""

PAGE, EACH = 1 << 16, 1 << 14
"""Bytes of the results without any cell, and of each: a row of the store, and shares of the files before and after they
are replaced. Measured, passkeys at five depths take 9,000 and fewer numbers less."""

NO_MEMORY = "can't allocate memory"
"""What torch says in a `RuntimeError` where the machine's own memory ends."""

Tell = Callable[[float, str], None]


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
    text: str | Path | None = None,
    seed: int = 0,
    limit: int | None = None,
    include_path: str | Path | None = None,
    trust_tasks: bool = False,
    one_factor: bool = False,
    name: str | None = None,
    command: str | None = None,
    progress: Tell | None = None,
    **model_args: Any,
) -> Comparison:
    """Measure every scheme on every task at every length, and write what came out into a folder.

    Finished cells are kept in ``cells.sqlite`` there: the same call after an interruption goes on where it was, and a
    call with any other setting measures anew. A scheme that is not defined for the model is noted with the reason, a
    cell that fails with its error, and the rest goes on.

    Args:
        model: a live model, or a name or path.
        schemes: ``"yarn,self_extend:group=8,unpatched"``, or a list of names, ``(name, options)`` and entries.
        out: folder of ``cells.sqlite``, ``results.json``, ``results.csv``, ``results.md`` and ``page.html``.
        tokenizer: of a live model.
        lengths: in tokens; by default one, two and four times the trained length.
        tasks: lm-eval task names; by default perplexity and passkeys.
        samples, scored, keys, depths, text, seed, limit, include_path, trust_tasks: as in `hf_posenc.eval.evaluate`.
        one_factor: patch once for the longest length, as a deployed model would be, rather than for each its own.
        name: what reports call the model.
        command: what reports print as the way to repeat them.
        progress: told how far the work is.
        **model_args: anything else `PosEncLM` takes.

    Raises:
        PosEncError: what is asked for makes no sense, or the folder cannot be used.
        NoDiskSpace: its disk has less room than the results take.
    """
    require_matplotlib()
    entries = entries_of(schemes)
    folder = folder_of_results(out)
    wanted, measure = check_measure(
        lengths=lengths, samples=samples, scored=scored, keys=keys, depths=depths, seed=seed, limit=limit, text=text
    )
    chosen = expanded(check_tasks(tasks, include_path))
    check_trusted(chosen, include_path, trust=trust_tasks)
    check_task_files(chosen, include_path)
    check_known(chosen, include_path)
    identity = {"versions": versions(), "text": text_digest(text)}
    if include_path is not None:
        identity["tasks"] = files_digest(Path(include_path), (".yaml", ".py"))
    tell = progress or (lambda done, doing: None)
    with Store(folder / STORE) as store:
        tell(0.0, "loading the model")
        with suppress_output(True):
            lm = language_model(model, tokenizer, **model_args)
        trained = trained_length_of(lm)
        wanted = wanted or [trained * multiple for multiple in MULTIPLES]
        chosen = chosen or list(MASKED_TASKS if is_masked(lm.model) else CAUSAL_TASKS)
        identity |= {"model": model_digest(lm.model), "tokenizer": tokenizer_digest(lm.tokenizer)}
        request = Request(measure, wanted[-1], one_factor, model_args, identity)
        cells = list(cells_of(request, entries, wanted, chosen))
        check_disk_space(folder, PAGE + EACH * len(cells), "Results")
        passed_on = {**measure, "text": text, "include_path": include_path, "trust_tasks": trust_tasks}
        records = measured(lm, cells, store, request, passed_on, tell)
        about = {
            "model": str(name or "") or (model if isinstance(model, str) else type(model).__name__),
            "model_scheme": lm.report.get("scheme"), "trained_length": trained, "lengths": wanted, "tasks": chosen,
            "schemes": [about_entry(entry) for entry in entries], "one_factor": one_factor, **measure,
            "text": None if text is None else str(text), "versions": identity.pop("versions"), "digests": identity,
            "command": command,
        }  # fmt: skip
        comparison = Comparison(about, records)
        tell(1.0, "writing")
        write_exports(folder, comparison)
    return comparison


def measured(
    lm: Any, cells: Sequence[Cell], store: Store, request: Request, passed_on: dict[str, Any], tell: Tell
) -> list[Record]:
    """The records of all cells: those the store has, and the others measured and put there."""
    kept = {record.key: record for record in map(store.get, (cell.key for cell in cells)) if is_final(record)}
    todo = list({cell.key: cell for cell in cells if cell.key not in kept}.values())  # two labels may mean one thing
    known = [((c.task, c.length), kept[c.key].seconds) for c in cells if c.key in kept and kept[c.key].state == "done"]
    pace = RemainingTime([(cell.task, cell.length) for cell in todo], known, tell)
    for number, cell in enumerate(todo):
        pace.begin(f"{cell.name} ({len(cells) - len(todo) + number + 1} of {len(cells)})")
        record = measured_cell(lm, cell, request, passed_on, pace.tick)
        store.put(record)
        kept[cell.key] = record
        pace.end(record.seconds, record.state == "done")
    return [replace(kept[cell.key], scheme=cell.entry.label) for cell in cells]


def is_final(record: Record | None) -> TypeGuard[Record]:
    """Whether a cell is answered for good; what failed is worth another try."""
    return record is not None and record.state != "failed"


def measured_cell(lm: Any, cell: Cell, request: Request, passed_on: dict[str, Any], tick: Callable[[], None]) -> Record:
    """One cell: done, refused by the scheme, or failed; the model carries afterwards what it carried before."""
    started = time.monotonic()
    state: State = "refused"
    reason, rows = "", []
    lm.tick = tick
    try:
        with patched(lm, cell, request):
            state = "failed"
            evaluation = evaluate(
                lm,
                tasks=[cell.task],
                lengths=cell.lengths,
                longest=request.longest,
                label=cell.entry.label,
                **passed_on,
            )
        rows = [row.to_dict() for row in evaluation.rows]
        reason = what_is_wrong(rows)
        state = "failed" if reason else "done"
    except PosEncError as error:
        reason = str(error)
    except Exception as error:
        state, reason = "failed", told(error, cell)
    length = cell.length if len(cell.lengths) == 1 else None
    return Record(
        cell.key, cell.entry.label, cell.task, length, state, reason, rows if state == "done" else [],
        time.monotonic() - started, cell.settings,
    )  # fmt: skip


def told(error: Exception, cell: Cell) -> str:
    """An error nobody foresaw, in a line; that of memory, which ends no process, with what to do."""
    what = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or NO_MEMORY in str(error):
        return f"Out of memory at {cell.length} tokens ({what}). Choose shorter lengths or a smaller batch size."
    return what


@contextmanager
def patched(lm: Any, cell: Cell, request: Request) -> Iterator[None]:
    """The model under the scheme of a cell.

    Raises:
        PosEncError: the scheme is refused, or the model as it comes ends before the length.
    """
    entry = cell.entry
    if entry.scheme is None:
        check_reach(lm, cell.length)
        yield
        return
    reach = request.longest if request.one_factor else cell.length
    lengths = entry.lengths or {"target_length": max(reach, trained_length_of(lm))}
    with torch.random.fork_rng():
        torch.manual_seed(request.measure["seed"])  # a learned scheme starts at random
        patch_model(lm.model, entry.scheme, **lengths, **entry.own_options)
    try:
        yield
    finally:
        unpatch_model(lm.model)


def what_is_wrong(rows: Sequence[dict[str, Any]]) -> str:
    """Why numbers cannot be reported; empty where they can."""
    if not rows:
        return "The task gave no number. Check its metrics."
    for row in rows:
        if not isfinite(row["value"]):
            return f"{row['metric']} is {row['value']} at length {row['length']}. Check the weights for such values."
    return ""


def about_entry(entry: Entry) -> dict[str, Any]:
    """What reports say about an entry."""
    return {
        "label": entry.label, "scheme": entry.scheme, "options": plain(entry.options),
        "needs_training": entry.needs_training(),
    }  # fmt: skip
