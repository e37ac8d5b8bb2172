"""Cells of a comparison: one scheme on one task at one length, with the key under which its record is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import uuid4

from torch import nn

from hf_posenc.core.lengths import Lengths, resolve_lengths
from hf_posenc.core.source_digest import is_foreign, source_digest
from hf_posenc.core.torch_state import drawn_from
from hf_posenc.errors import PosEncError, UnsupportedModel
from hf_posenc.eval.catalogue import reads, sweeps
from hf_posenc.eval.comparison.identity import terms_digest, to_json
from hf_posenc.eval.lm.measurable import trained_length_under
from hf_posenc.eval.results.store import Store, canonical, key_of
from hf_posenc.eval.settings import CompareSettings
from hf_posenc.eval.tasks.sweep import longest_of
from hf_posenc.eval.texts.measured_text import MeasuredText
from hf_posenc.patching.expected_effect import differs_from_host, spread_positions
from hf_posenc.patching.layer_schemes import build_layer_schemes, layout_of, unscaled_geometry
from hf_posenc.patching.state import base_model_of
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.entry import Entry
from hf_posenc.schemes.spec import plan


@dataclass(frozen=True)
class Cell:
    """One scheme on one task at one length, or at all for a task without a sweep; the key is that of its settings."""

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
class Measuring:
    """How one model is measured; everything that changes a number goes into the keys of the cells.

    Attributes:
        lm: lm-eval model object.
        settings: of the comparison, with lengths and tasks; of these, the key of a cell has what its task reads.
        model_args: of the model's object.
        identity: digests of model, tokenizer, text and tasks, and versions.
        text: that is measured on; None for the default text.
        store: of finished cells.
        own_digests: digests of the source and of the terms of the schemes that the model carries.
        chosen: label to options that were chosen for it; see `hf_posenc.eval.comparison.tune`.
        known: digests of terms that were computed, by settings: every task asks for the same ones.
    """

    lm: Any
    settings: CompareSettings
    model_args: dict[str, Any]
    identity: dict[str, Any]
    text: MeasuredText | None
    store: Store
    own_digests: dict[str, Any]
    chosen: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def longest(self) -> int:
        """Context in tokens before every target, and tokens that every scheme is patched for."""
        return longest_of(self.settings.longest, self.settings.lengths)

    def cell(self, entry: Entry, task: str, lengths: Sequence[int]) -> Cell:
        """Build a cell with its key."""
        fitted = self.fit(entry)
        settings = {
            **fitted.settings(), **self.computes(fitted), **self.identity, "task": task,
            "measured": list(lengths), "longest": self.longest,
            "patched_for": None if entry.scheme is None else self.longest,
            "measure": to_json({name: value for name, value in self.settings.measure().items() if reads(task, name)}),
            "model_args": to_json(self.model_args),
        }  # fmt: skip
        return Cell(fitted, task, tuple(lengths), key_of(settings), settings)

    def cells(self, entries: Sequence[Entry]) -> Iterator[Cell]:
        """Yield the cells in the order they are measured."""
        lengths = self.settings.lengths
        for entry in entries:
            for task in self.settings.tasks:
                for group in [[length] for length in lengths] if sweeps(task) else [list(lengths)]:
                    yield self.cell(entry, task, group)

    def fit(self, entry: Entry) -> Entry:
        """The entry with the options that a comparison chooses; those of the user stay.

        An entry that is refused stays as it is: patching says why.
        """
        if entry.scheme is None:
            return entry
        entry = replace(entry, options=entry.options | self.chosen.get(entry.label, {}))
        try:
            lengths = self.lengths(entry)
            parts = plan(entry.scheme or "", entry.own_options).parts
        except PosEncError:
            return entry
        options: dict[str, Any] = {}
        for cls, given in parts:
            wanted = cls.comparison_options(factor=lengths.factor, trained_length=lengths.trained)
            options |= {name: value for name, value in wanted.items() if name not in given}
        return replace(entry, options=options | entry.options)

    def lengths(self, entry: Entry) -> Lengths:
        """Trained and target length of the patch; never less than was trained on."""
        trained = trained_length_under(self.lm, entry)
        given = {"target_length": max(self.longest, trained)} | entry.lengths if not fixed(entry) else entry.lengths
        return resolve_lengths(configured=trained, **given)

    def computes(self, entry: Entry) -> dict[str, Any]:
        """Digests of the source of an entry's schemes and of their terms on the model, for the key of a cell."""
        if entry.scheme is None:
            return self.own_digests
        classes, slot = [cls for cls, _ in plan(entry.scheme).parts], canonical(entry.settings())
        if slot not in self.known:
            self.known[slot] = self.terms(entry)
        return {"source": sources_of(classes), "terms": self.known[slot]}

    def needs_training(self, entry: Entry) -> bool:
        """Whether the model's weights need training with an entry; see `Entry.needs_training`."""
        try:
            base, adapter = base_model_of(self.lm.model)
        except UnsupportedModel:  # on which every scheme is refused
            return entry.needs_training()
        return entry.needs_training(rotary=unscaled_geometry(adapter, base.config).rotary is not None)

    def has_effect(self, entry: Entry, length: int) -> bool:
        """Whether an entry that is put on the model differs from the unpatched model up to a length.

        True where it is refused; past its target length, where a scheme need not be defined; and past the end of the
        model's own table, where the unpatched model is not.
        """
        if entry.scheme is None:
            return True
        try:
            schemes, target = self.built(entry), self.lengths(entry).target
        except PosEncError:  # patching says why
            return True
        base, adapter = base_model_of(self.lm.model)
        geometry, positions = unscaled_geometry(adapter, base.config), spread_positions(length)
        ends = target if geometry.table is None else min(target, geometry.table)
        return length > ends or any(
            differs_from_host(scheme, positions, geometry.of_layer(layer)) for layer, scheme in enumerate(schemes)
        )

    def terms(self, entry: Entry) -> str:
        """Digest of the terms of an entry's schemes; the reason where they cannot be built."""
        try:
            with drawn_from(self.settings.seed):
                return terms_digest(self.built(entry))
        except Exception as error:  # patching says it again, as the reason of a refused or failed cell
            return f"{type(error).__name__}: {error}"

    def built(self, entry: Entry) -> list[Scheme]:
        """The scheme of every layer, apart from the model."""
        base, adapter = base_model_of(self.lm.model)
        lengths, geometry = self.lengths(entry), unscaled_geometry(adapter, base.config)
        chosen = layout_of(entry.scheme or "", entry.own_options, None, geometry)
        geometry = replace(geometry, trained_length=lengths.trained, target_length=lengths.target)
        return build_layer_schemes(chosen, geometry, adapter.name, partial(adapter.own_positions, base))


def carried_by(model: nn.Module) -> dict[str, Any]:
    """Digests of the source and of the terms of the schemes that a model carries as it stands."""
    schemes = [module for module in model.modules() if isinstance(module, Scheme)]
    return {"source": sources_of(map(type, schemes)), "terms": terms_digest(schemes)}


def sources_of(classes: Iterable[type]) -> list[str]:
    """Digests of the source of classes that are not of this package, whose version is in every key.

    One without source has no digest, and a key of its own each time: what it computed before is never shown again.
    """
    return sorted({source_digest(cls) or uuid4().hex for cls in classes if is_foreign(cls)})


def fixed(entry: Entry) -> bool:
    """Whether the user fixed the extension of an entry, so that it is the same at every length."""
    return bool(entry.lengths.keys() & {"factor", "target_length"})
