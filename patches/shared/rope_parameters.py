"""Read the RoPE parameters of a configuration: none, one set for all layers, or one for each type of layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNSCALED = "default"  # transformers' ``rope_type`` of frequencies as they were trained
TRAINED_LENGTH, TRAINED_THETA = "position_trained_length", "position_trained_theta"
"""Entries of a configuration that this package has exported, where nothing else in it says what the weights were
trained with: the length in tokens, and the base of the rotation, of which a larger one is stated."""


def rotations(config: Any) -> dict[str | None, Mapping[str, Any]]:
    """The RoPE parameters of a configuration of transformers by type of layer; see `by_layer_type`."""
    return by_layer_type(getattr(config, "rope_parameters", None))


def by_layer_type(parameters: Mapping[str, Any] | None) -> dict[str | None, Mapping[str, Any]]:
    """Sets of RoPE parameters by type of layer, ``"full_attention"``; one set for all layers is that of None."""
    if parameters is None:
        return {}
    nested: dict[str | None, Mapping[str, Any]] = {
        kind: own for kind, own in parameters.items() if isinstance(own, Mapping)
    }
    return nested or {None: parameters}
