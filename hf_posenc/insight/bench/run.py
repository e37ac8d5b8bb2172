"""A benchmark: every case at every length for every scheme, each a cell that is whole once it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_posenc.errors import AlreadyPatched, OptionOutOfRange, PosEncError
from hf_posenc.insight.bench.cases import CASES
from hf_posenc.insight.bench.cell import Cell, Measured
from hf_posenc.insight.bench.devices import Cpu, Device
from hf_posenc.insight.bench.settings import BenchSettings
from hf_posenc.insight.bench.timing import interleaved
from hf_posenc.insight.bench.variants import (
    NAIVE,
    PATCHED,
    UNPATCHED,
    variant,
)
from hf_posenc.patching.state import base_model_of, is_patched
from hf_posenc.schemes.entry import Entry, Given, entries_of

Tell = Callable[[float | None, str], None]
SCORE_COPIES, SCORE_BYTES = 4, 4  # of the naive form: scores, biases, weights and what is between, in float32


def bench(
    model: PreTrainedModel,
    schemes: str | Sequence[Given],
    lengths: Sequence[int],
    *,
    device: Device | None = None,
    threads: int | None = 1,
    tell: Tell = lambda done, doing: None,
    **order: Any,
) -> Iterator[Cell]:
    """Time schemes on a model, paired with the model as it comes and with their naive form.

    Args:
        model: without a scheme; it is left as it is.
        schemes: as `hf_posenc.eval.compare` takes them.
        lengths: tokens of a text, or in the cache.
        device: where it runs; by default the processor.
        threads: of torch; None leaves them as they are.
        tell: called with the share that is done and what is going on.
        **order: see `BenchSettings`.

    Yields:
        A cell when it is finished: whoever stops has those before.

    Raises:
        PosEncError: something is asked for that does not exist; refused schemes are cells.
    """
    place = device or Cpu()
    plan = BenchSettings(entries_of(schemes), lengths, **order)
    check_model(model, plan)
    return run(model.to(place.torch), plan, place, threads, tell)


def check_model(model: PreTrainedModel, order: BenchSettings) -> None:
    """Refuse what a model cannot be asked for.

    Raises:
        OptionOutOfRange: it is no decoder, and is to decode.
        AlreadyPatched: it carries a scheme.
        UnsupportedModel: no adapter knows it.
    """
    base, adapter = base_model_of(model)
    if is_patched(model):
        raise AlreadyPatched("The model carries a scheme, and is timed as it comes. Call unpatch_model(model) first.")
    trained = adapter.trained_length(base.config)
    causal = adapter.geometry(base.config, trained_length=trained, target_length=trained).causal
    for case in order.cases:
        if CASES[case].decoder_only and not causal:
            raise OptionOutOfRange(f"cases has {case!r}, but {type(model).__name__} has no cache. Leave it out.")


def run(
    model: PreTrainedModel, order: BenchSettings, device: Device, threads: int | None, tell: Tell
) -> Iterator[Cell]:
    """All cells, in turn."""
    work = [(case, length, entry) for case in order.cases for length in order.lengths for entry in order.entries]
    for number, (case, length, entry) in enumerate(work):

        def told(
            share: float, doing: str, before: int = number, what: str = f"{entry.label}, {case}, {length:,}"
        ) -> None:
            tell((before + share) / len(work), f"{what}: {doing}")

        with torch_threads(threads):
            cell = cell_of(model, order, device, case, length, entry, told)
        yield cell


def cell_of(
    model: PreTrainedModel,
    order: BenchSettings,
    device: Device,
    case: str,
    length: int,
    entry: Entry,
    tell: Callable[[float, str], None],
) -> Cell:
    """One cell."""
    base, adapter = base_model_of(model)
    ids = text(model, order.batch, length)
    tokens = CASES[case].tokens(ids)
    running: dict[str, Any] = {}
    found: dict[str, Measured] = {}
    try:
        for role in (UNPATCHED, PATCHED, NAIVE):
            if role != PATCHED and role not in order.against:
                continue
            tell(0.0, f"memory of {role}")
            if role == NAIVE and (reason := too_large(base, device, case, ids)):
                found[role] = Measured(why_not=reason)
                continue
            try:
                target = order.target(adapter.trained_length(base.config))
                chosen = variant(model, role, entry, length, target, decodes=CASES[case].decoder_only)
                running[role] = CASES[case](chosen, ids)
            except PosEncError as error:
                if role == PATCHED:
                    return Cell(entry.label, case, length, tokens, "refused", found, str(error))
                found[role] = Measured(why_not=str(error))
                continue
            running[role].reset()
            found[role] = Measured(memory=device.peak(running[role].call) + running[role].held())
        times = interleaved(
            running, order.rounds, device.clock,
            lambda done: tell(done / order.rounds, f"round {done} of {order.rounds}"),
        )  # fmt: skip
    except (RuntimeError, MemoryError) as error:
        return Cell(entry.label, case, length, tokens, "failed", found, f"{type(error).__name__}: {error}")
    for role, taken in times.items():
        found[role] = Measured(tuple(taken), found[role].memory)
    return Cell(entry.label, case, length, tokens, "done", found)


def text(model: PreTrainedModel, batch: int, length: int) -> Tensor:
    """Random tokens ``[batch, length]``, always the same."""
    generator = torch.Generator().manual_seed(0)
    config: Any = base_model_of(model)[0].config
    return torch.randint(0, config.vocab_size, (batch, length), generator=generator).to(model.device)


def too_large(base: Any, device: Device, case: str, ids: Tensor) -> str:
    """Why the naive form is not run, where its matrices of scores would not fit."""
    layers = {None: 0, "one layer": 1, "all layers": base.config.num_hidden_layers}[CASES[case].scores_squared]
    heads, (batch, length) = base.config.num_attention_heads, ids.shape
    needed, free = SCORE_COPIES * SCORE_BYTES * layers * batch * heads * length**2, device.free()
    if free is None or needed <= free:
        return ""
    return f"the naive form would hold about {needed / 2**30:.0f} GiB of scores, and {free / 2**30:.0f} GiB are free"


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Another number of threads while the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
