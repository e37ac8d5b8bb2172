"""transformers' own YaRN for a family that cannot be patched, where the family's code reads it."""

from __future__ import annotations

import copy
from typing import Any

from transformers import PreTrainedConfig

from hf_posenc.insight.advise.memory import skeleton
from hf_posenc.patches.shared.rope_parameters import UNSCALED, by_layer_type, rotations

KIND = "yarn"


def native_scaling(config: PreTrainedConfig, trained: int | None, target: int) -> dict[str, Any] | None:
    """The ``rope_parameters`` of a configuration under which transformers itself applies YaRN (arXiv:2309.00071).

    Args:
        config: of a model that no adapter patches; unchanged afterwards.
        trained: trained length in tokens; None where it is unknown.
        target: tokens to reach.

    Returns:
        One set for all layers, or one for each type of layer that is rotated, as the configuration has it; layers with
        a sliding window keep theirs. None where nothing is to be stretched, where the configuration scales already, or
        where the built model takes no notice of it.
    """
    found = rotations(config)
    scaled = any(own.get("rope_type", UNSCALED) != UNSCALED for own in found.values())
    if trained is None or target <= trained or not found or scaled:
        return None
    added = {"rope_type": KIND, "factor": target / trained, "original_max_position_embeddings": trained}
    stretched = {kind: {**own, **({} if "sliding" in str(kind) else added)} for kind, own in found.items()}
    parameters: dict[str, Any] = stretched[None] if None in stretched else dict(stretched)  # type: ignore[arg-type]
    return parameters if is_read(config, parameters) else None


def is_read(config: PreTrainedConfig, parameters: dict[str, Any]) -> bool:
    """Whether a model of the configuration, built without weights, has a rotation of each kind that is asked for."""
    changed = copy.deepcopy(config)
    changed.rope_parameters = parameters
    try:
        model = skeleton(changed)
    except (KeyError, TypeError, ValueError, AttributeError, NotImplementedError):
        return False  # families check their parameters each in their own way
    kinds: set[str] = set()
    for module in model.modules():
        own = getattr(module, "rope_type", None)
        kinds |= set(own.values()) if isinstance(own, dict) else {own} if isinstance(own, str) else set()
    return {own.get("rope_type", UNSCALED) for own in by_layer_type(parameters).values()} <= kinds
