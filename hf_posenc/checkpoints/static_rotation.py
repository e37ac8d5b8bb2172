"""Rotations of fixed frequencies, which need no RoPE type of their own: a list of frequencies says all there is.

transformers states such a list as ``longrope`` whose short and long lists are the same; GGUF as ``rope_freqs``.
"""

from __future__ import annotations

import math
from typing import Any

from hf_posenc.core.geometry import Geometry, Rotation
from hf_posenc.schemes.base import Scheme, implements

HOOKS = (
    *("regions", "row_rotation", "bias", "values", "embed", "reposition", "prepare"),
    *("query_scale", "row_scale", "sink", "visible"),
)
"""Hooks of schemes that do more than rotate by fixed frequencies."""
NEVER = 1e30  # divides the frequency of a pair that is not rotated: a JSON file has no infinity


def static_rotation(scheme: Scheme) -> Rotation | None:
    """The rotation of a scheme that does nothing but rotate the model's own pairs by fixed frequencies, else None.

    A scheme without positions has frequencies of zero.
    """
    host = scheme.geometry.rotary
    if host is None or any(implements(scheme, hook) for hook in HOOKS):
        return None
    rotation = scheme.rotation()
    if rotation is None:
        return Rotation((0.0,) * len(host.rotation.frequencies), host.rotation.layout)
    if rotation.values or rotation.decay or rotation.axes or host.axes:
        return None
    alike = (rotation.dims, rotation.layout) == (host.rotation.dims, host.rotation.layout)
    return rotation if alike else None


def rotates_nothing(scheme: Scheme) -> bool:
    """Whether a scheme rotates by zero at every position, and scales no score."""
    rotation = static_rotation(scheme)
    return rotation is not None and not any(rotation.numbers) and scheme.logit_scale() == 1.0


def divisors(rotation: Rotation, theta: float) -> list[float]:
    """What the frequencies θ^(−2m/d) are divided by, pair by pair."""
    return [theta ** (-2 * m / rotation.dims) / w if w else NEVER for m, w in enumerate(rotation.numbers)]


def amplitude(scheme: Scheme, rotation: Rotation) -> float:
    """The factor of cosines and sines under which the logits of rotated channels are those of the scheme."""
    return math.sqrt(scheme.logit_scale()) * rotation.amplitude


def as_longrope(scheme: Scheme) -> dict[str, Any] | None:
    """transformers' ``longrope`` with two equal lists, for a static rotation; None for other schemes."""
    rotation = static_rotation(scheme)
    if rotation is None or scheme.geometry.rotary is None:
        return None
    theta = scheme.geometry.rotary.base
    return longrope(rotation, theta, amplitude(scheme, rotation), scheme.geometry)


def longrope(rotation: Rotation, theta: float, scale: float, geometry: Geometry) -> dict[str, Any]:
    """transformers' ``longrope`` with two equal lists."""
    by = divisors(rotation, theta)
    return {
        "rope_type": "longrope", "rope_theta": theta, "short_factor": by, "long_factor": by, "factor": geometry.factor,
        "attention_factor": scale, "original_max_position_embeddings": geometry.trained_length,
    }  # fmt: skip
