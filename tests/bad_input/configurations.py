"""Live models whose configuration differs from what they were built with, or holds what no rotation can be."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import hf_posenc
from hf_posenc import errors
from hf_posenc.checks.tiny_models import TRAINED_LENGTH

from .row import NAN, Act, Errors, Row, Scene

HOST: Errors = errors.HostConfigInvalid
ROTATION = {"rope_type": "default", "rope_theta": 1e4}
LYING: list[tuple[str, str, Any, Errors, str]] = [
    ("llama", "num_attention_heads", 8, HOST, "4 heads"),
    ("llama", "num_key_value_heads", 1, HOST, "2 of keys"),
    ("llama", "num_key_value_heads", None, errors.AdapterInvalid, "None"),
    ("llama", "max_position_embeddings", None, HOST, "max_position_embeddings"),
    ("llama", "rope_parameters", None, HOST, "makes no rotation"),
    ("llama", "rope_parameters", {"rope_type": "default"}, HOST, "rope_theta"),
    ("bert", "num_attention_heads", 2, HOST, "4 heads"),
]
ODD: list[tuple[str, Any, str]] = [
    ("rope_parameters", ROTATION | {"original_max_position_embeddings": 0}, "original_max"),
    ("rope_parameters", ROTATION | {"rope_type": "linear", "factor": NAN}, "factor"),
    ("rope_parameters", ROTATION | {"rope_theta": 0}, "rope_theta"),
    ("rope_parameters", ROTATION | {"rope_type": "yarm"}, "Did you mean 'yarn'"),
    ("max_position_embeddings", 64.0, "64.0"),
]


def patched(name: str, value: Any, scheme: str = "alibi", **lengths: Any) -> Act:
    """Patch a model whose live configuration says something else; then put it right, so that the rest compares."""

    def act(scene: Scene) -> object:
        return within(scene.model.config, name, value, lambda: hf_posenc.patch_model(scene.model, scheme, **lengths))

    return act


def within(config: Any, name: str, value: Any, act: Callable[[], object]) -> object:
    """``act`` while an entry of a configuration is another."""
    entries = vars(config)
    before, entries[name] = entries[name], copy.deepcopy(value)
    try:
        return act()
    finally:
        entries[name] = before


def rows() -> list[Row]:
    """All of them."""
    yarn = {"scheme": "yarn", "trained_length": TRAINED_LENGTH, "factor": 2}
    return [
        *(
            Row(f"{kind} {name} {value}", error, key, patched(name, value), kind)
            for kind, name, value, error, key in LYING
        ),
        *(Row(f"live {name} {value}", HOST, key, patched(name, value, **yarn)) for name, value, key in ODD),
    ]  # fmt: skip
