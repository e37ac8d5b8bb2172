"""Detect changes to the configuration of a patched model, when it is saved or unpatched.

A patched model computes with the configuration it was built with, but saves the present one, which a loader builds the
model from. Where the two disagree in what decides positions, saving is refused before anything is written.

Other changes are the caller's and outlive the patch: a resized vocabulary, an attention implementation.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from torch import nn

from hf_posenc.errors import HostConfigInvalid, shown
from hf_posenc.patching.stored.config_guard import PATCH_KEYS, ROPE_KEY, SCHEME_KEY

if TYPE_CHECKING:
    from hf_posenc.core.geometry import Geometry
    from hf_posenc.patches.adapter import Adapter


PATCH_ENTRIES = (*PATCH_KEYS, ROPE_KEY, "max_position_embeddings")  # entries that belong to the patch


@dataclass(frozen=True)
class ConfigRecord:
    """The entries of a configuration that decide what a patched model computes.

    Attributes:
        scheme: its ``position_scheme``: the scheme, its options and lengths.
        rotation: ``rope_parameters`` of the unpatched model; None where it has none.
        adapter: of the model.
        geometry: what the adapter read from the configuration.
        entries: a copy of all entries.
    """

    scheme: dict[str, Any]
    rotation: Any
    adapter: Adapter
    geometry: Geometry
    entries: dict[str, Any]

    @classmethod
    def of(cls, base: nn.Module, adapter: Adapter, geometry: Geometry) -> ConfigRecord:
        """The record of a model that was patched just now."""
        config: Any = base.config
        entries = copy.deepcopy(vars(config))
        return cls(entries[SCHEME_KEY], entries.get(ROPE_KEY), adapter, geometry, entries)

    def changes(self, base: nn.Module) -> dict[str, Any]:
        """Entries that were changed since the patch; none where some of them decide positions."""
        try:
            self.check(base)
        except HostConfigInvalid:
            return {}
        now = {name: value for name, value in vars(base.config).items() if name not in PATCH_ENTRIES}
        return {name: value for name, value in now.items() if name not in self.entries or self.entries[name] != value}

    def check(self, base: nn.Module) -> None:
        """Refuse a configuration whose positions were changed since the patch.

        ``max_position_embeddings`` may be changed: loading a checkpoint sets it to the target length again.

        Raises:
            HostConfigInvalid: it was changed.
        """
        config: Any = base.config
        for name, was in ((SCHEME_KEY, self.scheme), (ROPE_KEY, self.rotation)):
            now = getattr(config, name, None)
            if now != was and not _contains(now, was):
                _raise_changed(name, was, now)
        then = copy.copy(config)
        then.max_position_embeddings = self.scheme["host_length"]
        try:
            now = self.adapter.geometry(
                then, trained_length=self.geometry.trained_length, target_length=self.geometry.target_length
            )
        except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise HostConfigInvalid(
                f"The configuration of this {type(base).__name__} was changed after the patch and cannot be read any "
                f"more: {str(error).partition('. ')[0]}. Put back what was changed, and save then."
            ) from error
        for field in fields(self.geometry):
            if getattr(now, field.name) != getattr(self.geometry, field.name):
                _raise_changed(field.name, getattr(self.geometry, field.name), getattr(now, field.name))


def _contains(now: Any, was: Any) -> bool:
    """Whether a mapping still has every entry it had."""
    return isinstance(now, Mapping) and isinstance(was, Mapping) and all(now.get(key) == was[key] for key in was)


def _raise_changed(name: str, was: Any, now: Any) -> None:
    raise HostConfigInvalid(
        f"The configuration was changed after the patch: {name} was {shown(was)} and is {shown(now)}, which a saved "
        "checkpoint would be built from. Put it back, or call unpatch_model and patch_model again."
    )
