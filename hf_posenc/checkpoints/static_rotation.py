"""Rotations of fixed frequencies, which can be exported as a list of frequencies, without a RoPE type of their own.

transformers has such a list as ``longrope`` with equal short and long lists, GGUF as ``rope_freqs``.
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
NEVER = 1e30  # divisor for the frequency of a pair that is not rotated, because JSON has no infinity


def static_rotation(scheme: Scheme) -> Rotation | None:
    """The rotation of a scheme that only rotates the model's own pairs by fixed frequencies; None for other schemes.

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
    """Divisor of the frequency θ^(−2m/d) of each pair."""
    return [theta ** (-2 * m / rotation.dims) / w if w else NEVER for m, w in enumerate(rotation.numbers)]


def amplitude(scheme: Scheme, rotation: Rotation) -> float:
    """Factor of cosines and sines that gives rotated channels the logit scale of the scheme."""
    return math.sqrt(scheme.logit_scale()) * rotation.amplitude


def as_longrope(scheme: Scheme) -> dict[str, Any] | None:
    """A static rotation as transformers' ``longrope`` with two equal lists; None for other schemes."""
    rotation = static_rotation(scheme)
    if rotation is None or scheme.geometry.rotary is None:
        return None
    theta = scheme.geometry.rotary.base
    return longrope(rotation, theta, amplitude(scheme, rotation), scheme.geometry)


def longrope(rotation: Rotation, theta: float, scale: float, geometry: Geometry) -> dict[str, Any]:
    """Parameters of transformers' ``longrope`` with two equal lists."""
    by = divisors(rotation, theta)
    return {
        "rope_type": "longrope", "rope_theta": theta, "short_factor": by, "long_factor": by, "factor": geometry.factor,
        "attention_factor": scale, "original_max_position_embeddings": geometry.trained_length,
    }  # fmt: skip
