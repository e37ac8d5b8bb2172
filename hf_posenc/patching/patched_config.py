"""Write the scheme of a patch into the configurations of a model, change it there, and undo that.

The configuration of the base model says its scheme. Where the model around it has one of its own, such as an
encoder–decoder or a multimodal model, that is the one which `save_pretrained` writes and a loader reads: it has to say
the scheme as well.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from hf_posenc.cache.provenance import ENTRY
from hf_posenc.patching.state import Patch, PatchPlan, outer_model
from hf_posenc.patching.stored.config_guard import CODE_KEY, ROPE_KEY, ROTATION_KEY, SCHEME_KEY, guarded_class
from hf_posenc.patching.stored.own_code import own_code
from hf_posenc.patching.stored.scheme_config import SchemeConfig

if TYPE_CHECKING:
    from hf_posenc.core.geometry import Geometry
    from hf_posenc.patching.config_changes import ConfigRecord
    from hf_posenc.schemes.spec import Layout

CONFIGS = "posenc_configs"  # of the model around: modules that have its configuration, each with the one from before


def write_config(patch: Patch, plan: PatchPlan) -> None:
    """Write scheme and lengths into a copy of the configuration, for every module that had the old one.

    A copy, because two models may share a configuration object."""
    old: Any = plan.base.config
    new = copy.deepcopy(old)
    geometry, host_length = plan.geometry, plan.adapter.host_length(old)
    stored = SchemeConfig(plan.layout, geometry.trained_length, geometry.target_length, host_length).to_json()
    setattr(new, SCHEME_KEY, stored)
    plan.base.__dict__[ENTRY] = copy.deepcopy(stored)
    if code := own_code(plan.layout):
        setattr(new, CODE_KEY, code)
    if isinstance(rotation := getattr(old, ROPE_KEY, None), Mapping):
        setattr(new, ROTATION_KEY, copy.deepcopy(dict(rotation)))
    new.__class__ = guarded_class(new.__class__)
    new.max_position_embeddings = max(geometry.target_length, host_length)
    for module in (plan.model, *plan.model.modules()):
        if module.__dict__.get("config") is old:
            patch.configs.append((module, old))
            module.config = new


def restore_config(patch: Patch, base: nn.Module) -> None:
    """Restore the configuration; as a copy with the caller's changes, where it was changed since the patch."""
    changes = {} if patch.record is None else patch.record.changes(base)
    for number, (module, old) in enumerate(patch.configs):
        if number == 0:
            config = copy.deepcopy(old) if changes else old
            vars(config).update(changes)
        module.config = config


def update_config(base: nn.Module, patch: Patch, record: ConfigRecord, layout: Layout, geometry: Geometry) -> None:
    """Write the new lengths into the configuration, and into what is known of it and of KV caches."""
    host_length: int = record.scheme["host_length"]
    stored = SchemeConfig(layout, geometry.trained_length, geometry.target_length, host_length).to_json()
    written = {SCHEME_KEY: stored, "max_position_embeddings": max(geometry.target_length, host_length)}
    for config in {id(vars(module)["config"]): vars(module)["config"] for module, _ in patch.configs}.values():
        for name, value in written.items():
            setattr(config, name, copy.deepcopy(value))
    base.__dict__[ENTRY] = copy.deepcopy(stored)  # another object: caches have noted the old one
    entries = record.entries | copy.deepcopy(written)
    patch.record = replace(record, scheme=entries[SCHEME_KEY], geometry=geometry, entries=entries)
    if patch.model is not None:
        update_outer_config(patch.model, stored)


def write_outer_config(model: nn.Module, entry: Mapping[str, Any]) -> None:
    """Write a scheme entry into a copy of the configuration of the outermost model, where that does not say it."""
    outer: Any = outer_model(model)
    if outer is None or getattr(outer.config, SCHEME_KEY, None) is not None:
        return
    old = outer.config
    new = copy.deepcopy(old)
    new.__class__ = guarded_class(new.__class__)
    _write_entry(new, entry)
    holders = [module for module in (model, *model.modules()) if module.__dict__.get("config") is old]
    outer.__dict__[CONFIGS] = [(module, old) for module in holders]
    for module in holders:
        module.config = new


def update_outer_config(model: nn.Module, entry: Mapping[str, Any]) -> None:
    """Write another entry where `write_outer_config` has written one."""
    outer = outer_model(model)
    if outer is not None and CONFIGS in outer.__dict__:
        _write_entry(outer.config, entry)


def _write_entry(config: Any, entry: Mapping[str, Any]) -> None:
    setattr(config, SCHEME_KEY, copy.deepcopy(dict(entry)))
    config.max_position_embeddings = max(entry["target_length"], entry["host_length"])


def restore_outer_config(model: nn.Module) -> None:
    """Undo `write_outer_config`."""
    outer = outer_model(model)
    for module, config in () if outer is None else outer.__dict__.pop(CONFIGS, ()):
        module.config = config
