"""Read the RoPE parameters of a configuration: none, one set for all layers, or one for each type of layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNSCALED = "default"  # transformers' ``rope_type`` of frequencies as they were trained
TRAINED_LENGTH, TRAINED_THETA = "position_trained_length", "position_trained_theta"
"""Entries that `export` adds to a configuration: the trained length in tokens, and the rotation's base in training.
Nothing else in an exported configuration gives them: it has the extended length and the larger base."""


def rotations(config: Any) -> dict[str | None, Mapping[str, Any]]:
    """The RoPE parameters in a configuration of transformers, by layer type; see `by_layer_type`."""
    return by_layer_type(getattr(config, "rope_parameters", None))


def by_layer_type(parameters: Mapping[str, Any] | None) -> dict[str | None, Mapping[str, Any]]:
    """RoPE parameters by layer type, such as ``"full_attention"``; a single set for all layers has the key None."""
    if parameters is None:
        return {}
    nested: dict[str | None, Mapping[str, Any]] = {
        kind: own for kind, own in parameters.items() if isinstance(own, Mapping)
    }
    return nested or {None: parameters}
