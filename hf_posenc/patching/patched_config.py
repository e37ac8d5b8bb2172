"""Write the scheme of a patch into the configurations of a model, detect later changes, and restore them.

The configuration of the base model records its scheme. A model around it, such as an encoder–decoder or a multimodal
model, may have its own configuration. `save_pretrained` writes that one, so it must record the scheme too.

A patched model computes with the configuration it was built with, but saves the present one, from which a loader builds
the model. If an entry that decides positions differs, saving is refused before anything is written. Other changes, such
as a resized vocabulary or another attention implementation, are kept when the patch is undone.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import nn

from hf_posenc.cache.provenance import ENTRY
from hf_posenc.errors import HostConfigInvalid, shown
from hf_posenc.patching.config_guard import (
    CODE_KEY,
    PATCH_KEYS,
    ROPE_KEY,
    ROTATION_KEY,
    SCHEME_KEY,
    guarded_class,
)  # fmt: skip
from hf_posenc.patching.scheme_config import SchemeConfig, own_code
from hf_posenc.patching.state import Patch, outer_model

LENGTH = "max_position_embeddings"
PATCH_ENTRIES = (*PATCH_KEYS, ROPE_KEY, LENGTH)  # entries that belong to the patch


def write_config(patch: Patch) -> None:
    """Write scheme and lengths into a copy of the configuration, and give it to every module that had the old one.

    The copy is needed because two models may share a configuration object.
    """
    old: Any = patch.base.config
    new = own_config(patch, patch.model, old)
    if code := own_code(patch.layout):
        setattr(new, CODE_KEY, code)
    if isinstance(rotation := getattr(old, ROPE_KEY, None), Mapping):
        setattr(new, ROTATION_KEY, copy.deepcopy(dict(rotation)))
    entry = scheme_entry(patch, patch.adapter.host_length(old))
    write_entry(new, entry)
    patch.base.__dict__[ENTRY] = entry
    patch.entries = copy.deepcopy(vars(new))
    write_outer_config(patch, outer_model(patch.model))


def own_config(patch: Patch, model: nn.Module, old: Any) -> Any:
    """Replace a configuration by a copy in every module of a model that has it, and record this in the patch."""
    new = copy.deepcopy(old)
    new.__class__ = guarded_class(new.__class__)
    for module in [module for module in model.modules() if module.__dict__.get("config") is old]:
        module.config = new
        patch.configs.append((module, old))
    return new


def scheme_entry(patch: Patch, host_length: int) -> dict[str, Any]:
    """The ``position_scheme`` entry of a patch; ``host_length`` is the length of the unpatched model."""
    return SchemeConfig(
        patch.layout, patch.geometry.trained_length, patch.geometry.target_length, host_length
    ).to_json()


def write_entry(config: Any, entry: Mapping[str, Any]) -> None:
    """Write a ``position_scheme`` entry, and the length that it implies, into a configuration."""
    setattr(config, SCHEME_KEY, copy.deepcopy(dict(entry)))
    setattr(config, LENGTH, max(entry["target_length"], entry["host_length"]))


def restore_config(patch: Patch) -> None:
    """Restore the configuration. If the caller changed it since the patch, a copy of the old one gets these changes."""
    changes = changed_entries(patch) if patch.entries else {}
    before = {id(old): old for _, old in patch.configs}
    if changes:
        first = next(iter(before))
        before[first] = copy.deepcopy(before[first])
        vars(before[first]).update(changes)
    for module, old in patch.configs:
        module.config = before[id(old)]


def update_config(patch: Patch) -> None:
    """Write the new lengths of the patch into the configurations and the patch. Filled KV caches become invalid."""
    entry = scheme_entry(patch, patch.entries[SCHEME_KEY]["host_length"])
    for config_copy in {id(vars(module)["config"]): vars(module)["config"] for module, _ in patch.configs}.values():
        write_entry(config_copy, entry)
    patch.base.__dict__[ENTRY] = entry  # a new object: caches that refer to the old one are refused
    config: Any = patch.base.config
    length = config.attribute_map.get(LENGTH, LENGTH)  # GPT-2 calls it ``n_positions``
    patch.entries |= copy.deepcopy({name: vars(config)[name] for name in (SCHEME_KEY, length)})


def write_outer_config(patch: Patch, outer: Any) -> None:
    """Write the scheme of a patch into a copy of an outer model's configuration, if that does not record it yet."""
    if outer is not None and getattr(outer.config, SCHEME_KEY, None) is None:
        write_entry(own_config(patch, outer, outer.config), vars(patch.base)[ENTRY])


def changed_entries(patch: Patch) -> dict[str, Any]:
    """Entries that were changed since the patch. Empty if an entry that decides positions is among them."""
    try:
        check_unchanged(patch)
    except HostConfigInvalid:
        return {}
    now = {name: value for name, value in vars(patch.base.config).items() if name not in PATCH_ENTRIES}
    return {name: value for name, value in now.items() if name not in patch.entries or patch.entries[name] != value}


def check_unchanged(patch: Patch) -> None:
    """Refuse a configuration if an entry that decides positions was changed since the patch.

    ``max_position_embeddings`` may be changed, because loading a checkpoint sets it to the target length again.
    """
    adapter, then = patch.adapter, patch.geometry
    config: Any = copy.copy(patch.base.config)
    for name in (SCHEME_KEY, ROPE_KEY):
        was, now = patch.entries.get(name), getattr(config, name, None)
        if now != was and not _contains(now, was):
            _raise_changed(name, was, now)
    setattr(config, LENGTH, patch.entries[SCHEME_KEY]["host_length"])
    try:
        geometry = adapter.geometry(config, trained_length=then.trained_length, target_length=then.target_length)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise HostConfigInvalid(
            f"The configuration of this {type(patch.base).__name__} was changed after the patch and cannot be "
            f"read any more: {str(error).partition('. ')[0]}. Put back the old values before saving."
        ) from error
    for field in fields(then):
        if getattr(geometry, field.name) != getattr(then, field.name):
            _raise_changed(field.name, getattr(then, field.name), getattr(geometry, field.name))


def _contains(now: Any, was: Any) -> bool:
    """Whether the mapping ``now`` has every entry of ``was``."""
    return isinstance(now, Mapping) and isinstance(was, Mapping) and all(now.get(key) == was[key] for key in was)


def _raise_changed(name: str, was: Any, now: Any) -> None:
    raise HostConfigInvalid(
        f"The configuration was changed after the patch: {name} was {shown(was)} and is {shown(now)}, so a saved "
        "checkpoint would load as another model. Put it back, or call unpatch_model and patch_model again."
    )
