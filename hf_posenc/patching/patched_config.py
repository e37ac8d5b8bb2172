"""Write the scheme of a patch into the configurations of a model, detect changes to them since, and undo all of it.

The configuration of the base model says its scheme. Where the model around it has one of its own, such as an
encoder–decoder or a multimodal model, that is the one which `save_pretrained` writes and a loader reads: it has to say
the scheme as well.

A patched model computes with the configuration it was built with, but saves the present one, which a loader builds the
model from. Where the two disagree in what decides positions, saving is refused before anything is written. Other
changes are the caller's and outlive the patch: a resized vocabulary, an attention implementation.
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
    """Write scheme and lengths into a copy of the configuration, for every module that had the old one.

    A copy, because two models may share a configuration object."""
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
    """A copy of a configuration, in its place in every module of a model that had it, which the patch records."""
    new = copy.deepcopy(old)
    new.__class__ = guarded_class(new.__class__)
    for module in [module for module in model.modules() if module.__dict__.get("config") is old]:
        module.config = new
        patch.configs.append((module, old))
    return new


def scheme_entry(patch: Patch, host_length: int) -> dict[str, Any]:
    """What a configuration says of a patch; ``host_length`` is that of the unpatched model."""
    return SchemeConfig(
        patch.layout, patch.geometry.trained_length, patch.geometry.target_length, host_length
    ).to_json()


def write_entry(config: Any, entry: Mapping[str, Any]) -> None:
    """Write a scheme entry into a configuration, with the length that goes with it."""
    setattr(config, SCHEME_KEY, copy.deepcopy(dict(entry)))
    setattr(config, LENGTH, max(entry["target_length"], entry["host_length"]))


def restore_config(patch: Patch) -> None:
    """Restore the configuration; as a copy with the caller's changes, where it was changed since the patch."""
    changes = changed_entries(patch) if patch.entries else {}
    before = {id(old): old for _, old in patch.configs}
    if changes:
        first = next(iter(before))
        before[first] = copy.deepcopy(before[first])
        vars(before[first]).update(changes)
    for module, old in patch.configs:
        module.config = before[id(old)]


def update_config(patch: Patch) -> None:
    """Write the lengths of the patch, which are new, into the configuration, and into what is known of it and of KV
    caches."""
    entry = scheme_entry(patch, patch.entries[SCHEME_KEY]["host_length"])
    for written in {id(vars(module)["config"]): vars(module)["config"] for module, _ in patch.configs}.values():
        write_entry(written, entry)
    patch.base.__dict__[ENTRY] = entry  # another object: caches have noted the old one
    config: Any = patch.base.config
    length = config.attribute_map.get(LENGTH, LENGTH)  # GPT-2 calls it ``n_positions``
    patch.entries |= copy.deepcopy({name: vars(config)[name] for name in (SCHEME_KEY, length)})


def write_outer_config(patch: Patch, outer: Any) -> None:
    """Write the scheme of a patch into a copy of the configuration of a model around it, where that does not say it."""
    if outer is not None and getattr(outer.config, SCHEME_KEY, None) is None:
        write_entry(own_config(patch, outer, outer.config), vars(patch.base)[ENTRY])


def changed_entries(patch: Patch) -> dict[str, Any]:
    """Entries that were changed since the patch; none where some of them decide positions."""
    try:
        check_unchanged(patch)
    except HostConfigInvalid:
        return {}
    now = {name: value for name, value in vars(patch.base.config).items() if name not in PATCH_ENTRIES}
    return {name: value for name, value in now.items() if name not in patch.entries or patch.entries[name] != value}


def check_unchanged(patch: Patch) -> None:
    """Refuse a configuration whose positions were changed since the patch.

    ``max_position_embeddings`` may be changed: loading a checkpoint sets it to the target length again.
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
            f"read any more: {str(error).partition('. ')[0]}. Put back what was changed, and save then."
        ) from error
    for field in fields(then):
        if getattr(geometry, field.name) != getattr(then, field.name):
            _raise_changed(field.name, getattr(then, field.name), getattr(geometry, field.name))


def _contains(now: Any, was: Any) -> bool:
    """Whether a mapping still has every entry it had."""
    return isinstance(now, Mapping) and isinstance(was, Mapping) and all(now.get(key) == was[key] for key in was)


def _raise_changed(name: str, was: Any, now: Any) -> None:
    raise HostConfigInvalid(
        f"The configuration was changed after the patch: {name} was {shown(was)} and is {shown(now)}, which a saved "
        "checkpoint would be built from. Put it back, or call unpatch_model and patch_model again."
    )
