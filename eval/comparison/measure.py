"""Measure the cells of a comparison: patch, evaluate, store, unpatch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from typing import Any

import torch

from hf_posenc.core import memory
from hf_posenc.core.files.hf_errors import is_out_of_memory
from hf_posenc.core.memory import tensors_in
from hf_posenc.core.progress import ProgressCallback, part_of
from hf_posenc.core.torch_state import fixed_seed
from hf_posenc.errors import PosEncError
from hf_posenc.eval.comparison.cell import Cell, Measuring
from hf_posenc.eval.evaluation import evaluation_of, fit_length
from hf_posenc.eval.lm.log_probs import unwrapped
from hf_posenc.eval.lm.measurable import check_reach
from hf_posenc.eval.results.rows import Row
from hf_posenc.eval.results.store import Costs, Record
from hf_posenc.forward.host_calls import cache_in_output, cache_name
from hf_posenc.patching.patch import patch_model, scheme_set_aside


def measure_cells(measuring: Measuring, cells: Sequence[Cell], progress: ProgressCallback) -> list[Record]:
    """Return the records of all cells; cells that are missing in the store are measured and stored first."""
    store = measuring.store
    stored = [] if measuring.settings.fresh else [store.get(cell.key) for cell in cells]
    records = {one.key: one for one in stored if one is not None and one.state != "failed"}  # failed: tried again
    todo = {cell.key: cell for cell in cells if cell.key not in records}  # two labels may name the same settings
    total, done = sum(cell.length for cell in todo.values()), 0  # progress is in tokens of context
    for number, cell in enumerate(todo.values()):
        name = f"{cell.entry.label} · {cell.task} · {cell.length}"
        step = f"{name} ({len(cells) - len(todo) + number + 1} of {len(cells)})"
        cell_progress = part_of(progress, done / total, cell.length / total)
        cell_progress(0.0, step)
        records[cell.key] = measure_cell(measuring, cell, cell_progress, step)
        store.put(records[cell.key])
        done += cell.length
        progress(done / total, step)
    return [replace(records[cell.key], scheme=cell.entry.label) for cell in cells]


def measure_cell(measuring: Measuring, cell: Cell, progress: ProgressCallback, step: str) -> Record:
    """Measure one cell and restore the model; the record says whether it is done, refused or failed."""
    started, lm = time.monotonic(), measuring.lm
    settings = measuring.settings.model_copy(
        update={"tasks": (cell.task,), "lengths": cell.lengths, "longest": measuring.longest}
    )
    length = cell.length if len(cell.lengths) == 1 else None
    record = Record(cell.key, cell.entry.label, cell.task, length, "refused", "", [], 0.0, cell.settings)
    lm.on_request = lambda share, request: progress(share or 0.0, step)
    try:
        with patched(measuring, cell):
            record = replace(record, state="failed")
            device = next(lm.model.parameters()).device
            measurable = begin_peak(device)
            fit_length(lm, cell.length)
            result = evaluation_of(lm, settings, cell.entry.label)
            costs = costs_since(lm.model, device, measurable=measurable)
        record = replace(record, reason=invalid_rows_reason(result.rows), remarks=result.remarks)
        if not record.reason:
            record = replace(record, state="done", rows=result.rows, documents=result.documents, costs=costs)
    except PosEncError as error:
        record = replace(record, reason=str(error))
    except Exception as error:
        record = replace(record, state="failed", reason=failure_reason(error, cell))
    return replace(record, seconds=time.monotonic() - started)


def failure_reason(error: Exception, cell: Cell) -> str:
    """Describe an unexpected error in one line; for an out-of-memory error, also say what to do."""
    what = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if is_out_of_memory(error):
        return f"Out of memory at {cell.length} tokens ({what}). Choose shorter lengths or a smaller batch size."
    return what


@contextmanager
def patched(measuring: Measuring, cell: Cell) -> Iterator[None]:
    """Inside the block, patch the model with the scheme of a cell; it replaces a scheme that the checkpoint carries."""
    lm, entry = measuring.lm, cell.entry
    if entry.scheme is None:
        check_reach(lm, cell.length)
        yield
        return
    with scheme_set_aside(lm.model):
        with fixed_seed(measuring.settings.seed):  # learned parameters are initialized randomly
            patch_model(lm.model, entry.scheme, **measuring.patch_lengths(entry), **entry.own_options)
        yield


def invalid_rows_reason(rows: Sequence[Row]) -> str:
    """Reason why the numbers cannot be reported; empty if they can."""
    if not rows:
        return "The task gave no number. Check its metrics."
    for row in rows:
        if not isfinite(row.value):
            return f"{row.metric} is {row.value} at length {row.length}. Check the weights for such values."
    return ""


FEW, MANY = 16, 32
"""Tokens of the two caches that are compared: fewer than any window that schemes have by default."""


def begin_peak(device: torch.device) -> bool:
    """Reset the peak memory of the CUDA device, otherwise of the process; False if it cannot be measured."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    return memory.reset_peak()


def costs_since(model: Any, device: torch.device, *, measurable: bool) -> Costs:
    """Peak memory since `begin_peak`, and the size of the KV cache of the model as it is patched now."""
    peak = int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else memory.peak()
    name = str(device) if device.type == "cuda" else "process"
    return Costs(peak if measurable else None, name, cache_per_token(model))  # this runs two passes, after the peak


def cache_per_token(model: Any) -> float | None:
    """Bytes per token of the KV cache of a model, as it is patched now; None for a model without one."""
    if cache_name(type(unwrapped(model))) is None:  # encoders, and models whose state does not grow
        return None
    few, many = (cache_bytes(model, tokens) for tokens in (FEW, MANY))
    return (many - few) / (MANY - FEW) if many else None


@torch.no_grad()
def cache_bytes(model: Any, tokens: int) -> int:
    """Bytes of the KV cache after ``tokens`` tokens."""
    ids = torch.zeros(1, tokens, dtype=torch.long, device=model.device)
    cache = cache_in_output(model(input_ids=ids, use_cache=True))
    sizes = {(tensor.data_ptr(), tensor.shape): tensor.nbytes for tensor in tensors_in(cache)}
    return sum(sizes.values())
