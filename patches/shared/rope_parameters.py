"""Read the RoPE parameters of a configuration: none, one set for all layers, or one for each type of layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNSCALED = "default"  # transformers' ``rope_type`` of frequencies as they were trained


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
