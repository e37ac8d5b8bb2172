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
from hf_posenc.core.torch_state import fixed_seed
from hf_posenc.errors import PosEncError, UnsupportedModel
from hf_posenc.eval.catalogue import reads, sweeps
from hf_posenc.eval.comparison.identity import terms_digest, to_json
from hf_posenc.eval.lm.measurable import trained_length_under
from hf_posenc.eval.results.store import Store, canonical, key_of
from hf_posenc.eval.settings import CompareSettings
from hf_posenc.eval.tasks.sweep import longest_of
from hf_posenc.patching.expected_effect import differs_from_host, spread_positions
from hf_posenc.patching.layer_schemes import build_layer_schemes, layout_of, unscaled_geometry
from hf_posenc.patching.state import base_model_of
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.entry import Entry
from hf_posenc.schemes.spec import plan


@dataclass(frozen=True)
class Cell:
    """One scheme on one task at one length, or at all lengths for a task without a sweep; its key digests settings."""

    entry: Entry
    task: str
    lengths: tuple[int, ...]
    key: str
    settings: dict[str, Any]

    @property
    def length(self) -> int:
        """The longest of the lengths, tokens."""
        return self.lengths[-1]


@dataclass(frozen=True)
class Measuring:
    """How one model is measured; everything that changes a number goes into the keys of the cells.

    Attributes:
        lm: lm-eval model object.
        settings: settings of the comparison, with lengths and tasks; the key of a cell contains those its task reads.
        model_args: arguments of the lm-eval model object.
        identity: digests of model, tokenizer, text and tasks, and versions.
        store: store of finished cells.
        own_digests: digests of the source and of the terms of the schemes that the model itself carries.
        chosen: options chosen for each label; see `hf_posenc.eval.comparison.tune`.
        digest_cache: digests of terms by settings, computed once because every task needs the same ones.
    """

    lm: Any
    settings: CompareSettings
    model_args: dict[str, Any]
    identity: dict[str, Any]
    store: Store
    own_digests: dict[str, Any]
    chosen: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    digest_cache: dict[str, str] = field(default_factory=dict, repr=False)

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
                if sweeps(task):
                    yield from (self.cell(entry, task, [length]) for length in lengths)
                else:
                    yield self.cell(entry, task, lengths)

    def fit(self, entry: Entry) -> Entry:
        """Add the options that a comparison chooses to those of the user, which stay.

        An entry that is refused is returned unchanged; patching gives the reason later.
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
        for cls, user_options in parts:
            suggested = cls.comparison_options(factor=lengths.factor, trained_length=lengths.trained)
            options |= {name: value for name, value in suggested.items() if name not in user_options}
        return replace(entry, options=options | entry.options)

    def lengths(self, entry: Entry) -> Lengths:
        """Trained and target length of the patch."""
        return resolve_lengths(configured=trained_length_under(self.lm, entry), **self.patch_lengths(entry))

    def patch_lengths(self, entry: Entry) -> dict[str, Any]:
        """Lengths of the patch as the user gave them; the default target is at least the trained length."""
        if entry.lengths.keys() & {"factor", "target_length"}:
            return entry.lengths
        return entry.lengths | {"target_length": max(self.longest, trained_length_under(self.lm, entry))}

    def computes(self, entry: Entry) -> dict[str, Any]:
        """Digests of the source of an entry's schemes and of their terms on the model, for the key of a cell."""
        if entry.scheme is None:
            return self.own_digests
        classes, settings = [cls for cls, _ in plan(entry.scheme).parts], canonical(entry.settings())
        if settings not in self.digest_cache:
            try:
                with fixed_seed(self.settings.seed):
                    self.digest_cache[settings] = terms_digest(self.layer_schemes(entry))
            except Exception as error:  # patching raises it again, and the cell is then refused or failed
                self.digest_cache[settings] = f"{type(error).__name__}: {error}"
        return {"source": sources_of(classes), "terms": self.digest_cache[settings]}

    def needs_training(self, entry: Entry) -> bool:
        """Whether the model must be trained to use the scheme of an entry; see `Entry.needs_training`."""
        try:
            base, adapter = base_model_of(self.lm.model)
        except UnsupportedModel:  # every scheme is refused on such a model
            return entry.needs_training()
        return entry.needs_training(rotary=unscaled_geometry(adapter, base.config).rotary is not None)

    def has_effect(self, entry: Entry, length: int) -> bool:
        """Whether the model under an entry differs from the unpatched model at a position below ``length``.

        Also True where both cannot be compared: if the entry is refused, if ``length`` exceeds its target length, or if
        it exceeds the model's own position table.
        """
        if entry.scheme is None:
            return True
        try:
            schemes, target = self.layer_schemes(entry), self.lengths(entry).target
        except PosEncError:  # patching gives the reason
            return True
        base, adapter = base_model_of(self.lm.model)
        geometry, positions = unscaled_geometry(adapter, base.config), spread_positions(length)
        comparable = target if geometry.table is None else min(target, geometry.table)
        return length > comparable or any(
            differs_from_host(scheme, positions, geometry.of_layer(layer)) for layer, scheme in enumerate(schemes)
        )

    def layer_schemes(self, entry: Entry) -> list[Scheme]:
        """Build the scheme of every layer without patching the model."""
        base, adapter = base_model_of(self.lm.model)
        lengths, geometry = self.lengths(entry), unscaled_geometry(adapter, base.config)
        layout = layout_of(entry.scheme or "", entry.own_options, None, geometry)
        geometry = replace(geometry, trained_length=lengths.trained, target_length=lengths.target)
        return build_layer_schemes(layout, geometry, adapter.name, partial(adapter.own_positions, base))


def carried_by(model: nn.Module) -> dict[str, Any]:
    """Digests of the source and of the terms of the schemes that a model itself carries."""
    schemes = [module for module in model.modules() if isinstance(module, Scheme)]
    return {"source": sources_of(map(type, schemes)), "terms": terms_digest(schemes)}


def sources_of(classes: Iterable[type]) -> list[str]:
    """Digests of the source of classes from outside this package, whose own version is in every key.

    A class without source gets a random digest each time, so that its stored results are never used again.
    """
    return sorted({source_digest(cls) or uuid4().hex for cls in classes if is_foreign(cls)})
