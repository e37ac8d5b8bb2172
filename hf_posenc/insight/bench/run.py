"""Run a benchmark: every case at every length for every scheme, one cell each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, MinLen
from transformers import PreTrainedModel

from hf_posenc.checkpoints.logits import random_text
from hf_posenc.checkpoints.merge import load_unpatched
from hf_posenc.core.lengths import check_factor
from hf_posenc.core.progress import OpenProgressCallback, ProgressCallback, part_of
from hf_posenc.core.settings import check_fields
from hf_posenc.errors import AlreadyPatched, OptionOutOfRange, PosEncError
from hf_posenc.insight.bench.cases import CASES
from hf_posenc.insight.bench.devices import MOST_CALLS, Device, Elapsed, device_of, interleaved
from hf_posenc.insight.bench.models import PATCHED, UNPATCHED, variant
from hf_posenc.insight.bench.results import BenchCell, Measured
from hf_posenc.patching.layer_schemes import is_causal, trained_length_of_patch
from hf_posenc.patching.state import base_model_of, is_patched
from hf_posenc.schemes.entry import Entry, Given, entries_of

REACH = 8  # default target length in trained lengths, unless lengths or factor exceed it
Length = Annotated[int, Ge(2)]
CaseName = Literal["prefill", "decode", "train"]


@dataclass(frozen=True)
class BenchSettings:
    """Settings of a benchmark.

    Attributes:
        entries: schemes, as `hf_posenc.schemes.entry.Entry`.
        lengths: tokens.
        cases: keys of `hf_posenc.insight.bench.cases.CASES`.
        factor: target length divided by trained length, for entries without one.
        rounds: measurements of each cell.
        batch_size: rows of a call.
        compile: whether all models run under `torch.compile`, with dynamic shapes.

    Raises:
        OptionOutOfRange: a number is out of range, or a name is unknown.
    """

    entries: Sequence[Any]
    lengths: Annotated[list[Length] | tuple[Length, ...], MinLen(1)]
    cases: list[CaseName] | tuple[CaseName, ...] = ("prefill",)
    factor: float | None = None
    rounds: Annotated[int, Ge(1)] = 7
    batch_size: Annotated[int, Ge(1)] = 1
    compile: bool = False

    def __post_init__(self) -> None:
        check_fields(self, OptionOutOfRange)
        if self.factor is not None:
            check_factor(self.factor)
        if any(entry.scheme is None for entry in self.entries):
            raise OptionOutOfRange("unpatched is the baseline, not a scheme. It is always timed: leave it out.")
        if self.compile and "decode" in self.cases:
            raise OptionOutOfRange(
                "compile is set, and the cache of 'decode' grows with every call, which transformers does not compile. "
                "Time prefill or train."
            )


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
    if is_patched(loaded):
        raise AlreadyPatched(
            "The model is patched, and the benchmark needs the unpatched model. Call unpatch_model(model) first."
        )
    causal = is_causal(loaded)
    if "decode" in plan.cases and not causal:
        raise OptionOutOfRange(f"cases has 'decode', but {type(loaded).__name__} has no cache. Leave it out.")
    return run(loaded, plan, device_of(str(loaded.device)), progress)


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
    kind, ids = CASES[case], random_text(model, length, rows=settings.batch_size).to(model.device)
    tokens = len(ids) if kind.decodes else ids.numel()
    reach = length + MOST_CALLS + 1 if kind.decodes else length  # each call that decodes adds a token
    running: dict[str, Any] = {}
    memory: dict[str, int | None] = {}
    times: dict[str, list[Elapsed]] = {}
    state, why_not = "done", ""
    if settings.compile:
        torch.compiler.reset()  # otherwise all models count as recompilations of one function, which has a limit
    try:
        for role in (UNPATCHED, PATCHED):
            progress(0.0, f"memory of {role}")
            running[role] = kind(variant_at(reach, model, settings, entry, role), ids)
            if settings.compile:
                progress(0.0, f"compiling {role}")
                running[role].module.compile(dynamic=True)
                running[role].reset()
                running[role].call()
            running[role].reset()
            peak = device.peak(running[role].call)
            memory[role] = None if peak is None else peak + running[role].held()
        times = interleaved(
            running, settings.rounds, device.clock,
            lambda done: progress(done / settings.rounds, f"round {done} of {settings.rounds}"),
        )  # fmt: skip
    except PosEncError as error:
        state, why_not = "refused", str(error)
    except (RuntimeError, MemoryError) as error:
        state, why_not = "failed", f"{type(error).__name__}: {error}"
    measured = {role: Measured(tuple(times.get(role, ())), held) for role, held in memory.items()}
    return BenchCell(entry.label, case, length, tokens, state, measured, why_not)


def variant_at(reach: int, model: PreTrainedModel, settings: BenchSettings, entry: Entry, role: str) -> PreTrainedModel:
    """Build the model in one role, unpatched or patched, for texts of ``reach`` tokens."""
    base, adapter = base_model_of(model)
    trained = trained_length_of_patch(adapter, base.config, entry.scheme, entry.options)
    if settings.factor is not None:
        return variant(model, role, entry, reach, max(reach, round(settings.factor * trained)))
    try:
        return variant(model, role, entry, reach, max(reach, REACH * trained, *settings.lengths))
    except OptionOutOfRange:  # schemes that end with the position table
        return variant(model, role, entry, reach, max(reach, trained))
