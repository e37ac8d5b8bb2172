"""Run a benchmark: every case at every length for every scheme, one cell each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_posenc.checkpoints.logits import random_text
from hf_posenc.checkpoints.merge import load_unpatched
from hf_posenc.core.progress import OpenProgressCallback, ProgressCallback, part_of
from hf_posenc.errors import AlreadyPatched, OptionOutOfRange, PosEncError
from hf_posenc.insight.bench.cases import CASES, Case
from hf_posenc.insight.bench.devices import Device, device_of, interleaved
from hf_posenc.insight.bench.models import PATCHED, UNPATCHED, variant
from hf_posenc.insight.bench.results import BenchCell, Measured
from hf_posenc.insight.bench.settings import BenchSettings
from hf_posenc.patching.layer_schemes import is_causal, trained_length_of_patch
from hf_posenc.patching.state import base_model_of, is_patched
from hf_posenc.schemes.entry import Entry, Given, entries_of

REACH = 8  # default target length in trained lengths, unless lengths or factor exceed it


def bench(
    model: PreTrainedModel | str | os.PathLike[str],
    schemes: str | Sequence[Given],
    lengths: Sequence[int],
    *,
    progress: OpenProgressCallback = lambda done, doing: None,
    **settings: Any,
) -> Iterator[BenchCell]:
    """Time schemes on a model, paired with the unpatched model.

    Args:
        model: unpatched model, which is not changed, timed on its device; or a name that `from_pretrained` accepts. A
            PEFT adapter of a named model is merged, and its scheme removed.
        schemes: in the forms of `hf_posenc.eval.compare`.
        lengths: tokens of a text, or in the KV cache.
        progress: called with the completed fraction and a description of the current step.
        **settings: see `BenchSettings`.

    Yields:
        Every cell as soon as it is measured.

    Raises:
        PosEncError: an argument is invalid; a refused scheme is a cell, not an error.
    """
    plan = BenchSettings(entries_of(schemes), tuple(lengths), **settings)
    loaded: Any = load_unpatched(model) if isinstance(model, (str, os.PathLike)) else model
    check_model(loaded, plan)
    return run(loaded, plan, device_of(str(loaded.device)), progress)


def check_model(model: PreTrainedModel, settings: BenchSettings) -> None:
    """Check that the model can be benchmarked."""
    if is_patched(model):
        raise AlreadyPatched(
            "The model is patched, and the benchmark needs the unpatched model. Call unpatch_model(model) first."
        )
    causal = is_causal(model)
    for case in settings.cases:
        if CASES[case].decoder_only and not causal:
            raise OptionOutOfRange(f"cases has {case!r}, but {type(model).__name__} has no cache. Leave it out.")


def run(
    model: PreTrainedModel, settings: BenchSettings, device: Device, progress: OpenProgressCallback
) -> Iterator[BenchCell]:
    """Yield all cells in order."""
    work = list(product(settings.cases, settings.lengths, settings.entries))
    for number, (case, length, entry) in enumerate(work):
        own = part_of(progress, number / len(work), 1 / len(work), f"{entry.label}, {case}, {length:,}: ")
        yield cell_of(model, settings, device, case, length, entry, own)


def cell_of(
    model: PreTrainedModel,
    settings: BenchSettings,
    device: Device,
    case: str,
    length: int,
    entry: Entry,
    progress: ProgressCallback,
) -> BenchCell:
    """Measure one cell: the memory of the unpatched and the patched model, then their times in turns."""
    ids = random_text(model, length, rows=settings.batch_size).to(model.device)
    tokens = CASES[case].tokens(ids)
    running: dict[str, Any] = {}
    measured: dict[str, Measured] = {}
    if settings.compile:
        torch.compiler.reset()  # otherwise all models count as recompilations of one function, which has a limit
    try:
        for role in (UNPATCHED, PATCHED):
            progress(0.0, f"memory of {role}")
            running[role] = case_of_role(model, settings, CASES[case], length, entry, role, ids)
            if settings.compile:
                progress(0.0, f"compiling {role}")
                running[role].module.compile(dynamic=True)
                running[role].reset()
                running[role].call()
            running[role].reset()
            peak = device.peak(running[role].call)
            measured[role] = Measured(memory=None if peak is None else peak + running[role].held())
        times = interleaved(
            running, settings.rounds, device.clock,
            lambda done: progress(done / settings.rounds, f"round {done} of {settings.rounds}"),
        )  # fmt: skip
    except PosEncError as error:
        return BenchCell(entry.label, case, length, tokens, "refused", measured, str(error))
    except (RuntimeError, MemoryError) as error:
        return BenchCell(entry.label, case, length, tokens, "failed", measured, f"{type(error).__name__}: {error}")
    for role, elapsed in times.items():
        measured[role] = Measured(tuple(elapsed), measured[role].memory)
    return BenchCell(entry.label, case, length, tokens, "done", measured)


def case_of_role(
    model: PreTrainedModel,
    settings: BenchSettings,
    kind: type[Case],
    length: int,
    entry: Entry,
    role: str,
    ids: Tensor,
) -> Case:
    """Build the timed call of the model in one role: unpatched or patched."""
    base, adapter = base_model_of(model)
    reach = length + kind.beyond
    trained = trained_length_of_patch(adapter, base.config, entry.scheme, entry.options)
    if settings.factor is not None:
        return kind(variant(model, role, entry, reach, max(reach, round(settings.factor * trained))), ids)
    try:
        chosen = variant(model, role, entry, reach, max(reach, REACH * trained, *settings.lengths))
    except OptionOutOfRange:  # schemes that end with the position table
        chosen = variant(model, role, entry, reach, max(reach, trained))
    return kind(chosen, ids)
