"""Cells of a comparison: one scheme on one task at one length, with the key under which its record is stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hf_posenc.eval.catalogue import QUESTIONS, reads, sweeps
from hf_posenc.eval.comparison.fitting import Computes, Fit
from hf_posenc.eval.comparison.identity import to_json
from hf_posenc.eval.results.record import key_of
from hf_posenc.schemes.entry import UNPATCHED, Entry

RETRIEVAL = QUESTIONS | {"posenc_copy", "posenc_induction"}
"""Our tasks that retrieve: the scores of the others are losses, or shares that every model has some of."""


@dataclass(frozen=True)
class Cell:
    """One unit of measurement.

    Attributes:
        entry: the scheme with its options.
        task: lm-eval task.
        lengths: in tokens; one, or all for a task without a length sweep, which is measured once.
        key: key in the store.
        settings: everything the key is computed from.
    """

    entry: Entry
    task: str
    lengths: tuple[int, ...]
    key: str
    settings: dict[str, Any]

    @property
    def length(self) -> int:
        """The longest of the lengths, tokens."""
        return self.lengths[-1]

    @property
    def name(self) -> str:
        """Name in progress output."""
        return f"{self.entry.label} · {self.task} · {self.length}"


@dataclass(frozen=True)
class MeasurementRequest:
    """Settings common to all schemes; everything that changes a number goes into the keys of the cells.

    Attributes:
        measure: settings of the tasks; of these, the key of a cell has what its task reads.
        longest: context in tokens before every target.
        factor_per_length: whether a scheme is patched anew for every length, with the factor that reaches it, instead
            of once, for the longest length.
        model_args: of the model's object.
        identity: digests of model, tokenizer, text and tasks, and versions.
        fit: an entry and the tokens it has to reach to the entry with all the options that are chosen for them.
        computes: those to digests of what the scheme computes.
        fresh: whether cells are measured that are stored already.
    """

    measure: dict[str, Any]
    longest: int
    factor_per_length: bool
    model_args: dict[str, Any]
    identity: dict[str, Any]
    fit: Fit = lambda entry, reach: entry
    computes: Computes = lambda entry, reach: {}
    fresh: bool = False

    def reach(self, length: int) -> int:
        """Tokens that a scheme is patched for, to be measured at a length."""
        return length if self.factor_per_length else self.longest

    def cell(self, entry: Entry, task: str, lengths: Sequence[int]) -> Cell:
        """Build a cell with its key."""
        reach = self.reach(lengths[-1])
        fitted = self.fit(entry, reach)
        settings = {
            **fitted.settings(), **self.computes(fitted, reach), **self.identity, "task": task,
            "measured": list(lengths), "longest": self.longest,
            "patched_for": None if self.factor_per_length or entry.scheme is None else self.longest,
            "measure": to_json({name: value for name, value in self.measure.items() if reads(task, name)}),
            "model_args": to_json(self.model_args),
        }  # fmt: skip
        return Cell(fitted, task, tuple(lengths), key_of(settings), settings)

    def cells(self, entries: Sequence[Entry], lengths: Sequence[int], tasks: Sequence[str]) -> Iterator[Cell]:
        """Yield the cells in the order they are measured."""
        for entry in entries:
            for task in tasks:
                for group in [[length] for length in lengths] if sweeps(task) else [list(lengths)]:
                    yield self.cell(entry, task, group)

    def gates(self, entries: Sequence[Entry], tasks: Sequence[str], trained: int) -> list[Cell]:
        """The unpatched model at ``trained`` tokens on every retrieval task, see `hf_posenc.eval.results.gate`.

        None if no length of the comparison reaches there.
        """
        if trained > self.longest:
            return []
        baseline = next((entry for entry in entries if entry.scheme is None), Entry(UNPATCHED, None))
        return [self.cell(baseline, task, [trained]) for task in tasks if task in RETRIEVAL]
