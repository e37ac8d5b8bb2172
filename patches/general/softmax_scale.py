"""Measure the factor that a RoPE scaling multiplies into the softmax scale of attention modules.

    score = scaling · q · k        scaling = head_dim^(−½) (0.1 mscale_all_dim ln s + 1)²,   s = factor

Attention with a latent cache (MLA, as in DeepSeek V2) rotates only the last channels of each head. Cosines and sines
cannot scale the other channels, so the temperature of all logits is a part of the softmax scale. The temperature
belongs to its rotation: a scheme that replaces the rotation drops both.

The factor is measured, not read from code: it compares the scales of models built with different RoPE parameters.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from hf_posenc.patches.general.observation import AttentionObservation, Observation
from hf_posenc.patches.general.stand_in import without_weights
from hf_posenc.patches.shared.rope_parameters import UNSCALED, rotations

SCALE = "scaling"  # attribute of attention modules in transformers
TRIED = {
    "rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 32,
}  # fmt: skip
EXPECTED = (0.1 * math.log(4.0) + 1) ** 2  # factor of all logits under `TRIED`
BESIDE = ("rope_theta", "partial_rotary_factor")


def with_softmax_scale(seen: Observation, model: nn.Module, config: Any) -> Observation:
    """The observation with each module's softmax factor."""
    if not any(one.first for one in seen.attentions):
        return seen  # without a latent cache the rotation starts at the first channel of a head
    scaled = any(own.get("rope_type", UNSCALED) != UNSCALED for own in rotations(config).values())
    current = scales_of(model)
    unscaled = scales_of(built(type(model), config, {"rope_type": UNSCALED})) if scaled else current
    tried = scales_of(built(type(model), config, TRIED))
    return replace(seen, attentions=tuple(_with_factor(one, current, unscaled, tried) for one in seen.attentions))


def scales_of(model: nn.Module) -> dict[str, float]:
    """Softmax scale of every module that has one, by module name."""
    scales = ((name, getattr(module, SCALE, None)) for name, module in model.named_modules())
    return {name: scale for name, scale in scales if isinstance(scale, float)}


def built(cls: type[nn.Module], config: Any, parameters: Mapping[str, Any]) -> nn.Module:
    """A model without weights, whose configuration has these RoPE parameters instead of its scaling."""
    config = copy.deepcopy(config)
    sets = {
        kind: {**{name: own[name] for name in BESIDE if name in own}, **parameters}
        for kind, own in rotations(config).items()
    }
    config.rope_parameters = sets.get(None, sets)
    with without_weights():
        return cls(config)


def _with_factor(
    one: AttentionObservation, current: Mapping[str, float], unscaled: Mapping[str, float], tried: Mapping[str, float]
) -> AttentionObservation:
    rotary = one.kind.rotary
    if rotary is None or not all(one.name in scales for scales in (current, unscaled, tried)):
        return one
    factor = current[one.name] / unscaled[one.name]
    scales_softmax = math.isclose(tried[one.name] / unscaled[one.name], EXPECTED, rel_tol=1e-6)
    rotary = replace(rotary, logit_scale=rotary.logit_scale * factor, scales_softmax=scales_softmax)
    attributes = {**one.attributes, SCALE: current[one.name]} if rotary.scales_softmax else one.attributes
    return replace(one, kind=replace(one.kind, rotary=rotary), softmax_factor=factor, attributes=attributes)
