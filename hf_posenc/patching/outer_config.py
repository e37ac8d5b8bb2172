"""The scheme in the configuration of what holds a patched model: of an encoder–decoder, or a multimodal model.

The configuration of the base model says its scheme. Where the model around it has one of its own, that is the one which
`save_pretrained` writes and a loader reads: it has to say the scheme as well.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from hf_posenc.patching.state import outer_model
from hf_posenc.patching.stored.config_guard import SCHEME_KEY, guarded_class

CONFIGS = "posenc_configs"  # of the model around: modules that have its configuration, each with the one from before


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
