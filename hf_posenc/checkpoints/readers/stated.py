"""The rotation parameters in a configuration, and the formulas that engines share.

The formulas were written from reading the engines' code, not from `hf_posenc.schemes`. If an engine reads a
configuration differently from what the scheme means, the two differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_posenc.core.geometry import geometric


class Unread(Exception):
    """An engine cannot rotate by these parameters; the message says why."""


@dataclass(frozen=True)
class ExportedConfig:
    """The entries of a configuration that an engine reads for the layers of one type.

    Attributes:
        parameters: ``rope_parameters`` of these layers.
        model_type: type of the model, such as ``llama``.
        head_dim: channels of a head.
        interleaved: whether the model rotates channels 2m and 2m + 1 together.
        max_positions: ``max_position_embeddings``.
        served_length: longest text that the engine is started for, in tokens.
        layers: type of the layers, such as ``sliding_attention``; None if all layers share their parameters.
        old_keys: the parameters in the form before transformers 5; empty if that cannot express them.
    """

    parameters: Mapping[str, Any]
    model_type: str
    head_dim: int
    interleaved: bool
    max_positions: int
    served_length: int
    layers: str | None = None
    old_keys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sliding(self) -> bool:
        """Whether these are the layers with a window, in a model with two types of layers."""
        return self.layers == "sliding_attention"

    @property
    def rope_type(self) -> str:
        """transformers' name of the scaling."""
        return self.parameters["rope_type"]

    @property
    def theta(self) -> float:
        """RoPE's base."""
        return self.parameters["rope_theta"]

    @property
    def factor(self) -> float:
        """Factor of the scaling; 1 if none is stated."""
        return float(self.parameters.get("factor", 1.0))

    @property
    def original_length(self) -> int:
        """``original_max_position_embeddings``, in tokens."""
        return self.parameters["original_max_position_embeddings"]

    @property
    def rotary_dim(self) -> int:
        """Rotated channels of a head."""
        return int(self.head_dim * self.parameters.get("partial_rotary_factor", 1.0))


@dataclass(frozen=True)
class ReadRotation:
    """The rotation that an engine computes.

    Attributes:
        frequencies: radians per token of each pair.
        amplitude: factor of cosines and sines, whose square scales the rotated part of the logits.
    """

    frequencies: tuple[float, ...]
    amplitude: float = 1.0


def unscaled(stated: ExportedConfig) -> ReadRotation:
    """RoPE without a scaling: θ^(−2m / d)."""
    return ReadRotation(geometric(stated.theta, stated.rotary_dim))


def unscaled_head(stated: ExportedConfig) -> ReadRotation:
    """RoPE without a scaling, for all channels of a head, whatever share of them is stated."""
    return ReadRotation(geometric(stated.theta, stated.head_dim))


def linear(stated: ExportedConfig) -> ReadRotation:
    """Linear interpolation: every frequency divided by the factor."""
    return ReadRotation(tuple(w / stated.factor for w in geometric(stated.theta, stated.rotary_dim)))


def llama3(stated: ExportedConfig) -> ReadRotation:
    """Llama 3: wavelengths above ``original / low_freq_factor`` times the factor, shorter ones less or unchanged."""
    low, high = stated.parameters["low_freq_factor"], stated.parameters["high_freq_factor"]

    def scaled(w: float) -> float:
        turns = stated.original_length * w / (2 * math.pi)
        unscaled_share = min(max((turns - low) / (high - low), 0.0), 1.0)
        return (1 - unscaled_share) * w / stated.factor + unscaled_share * w

    return ReadRotation(tuple(map(scaled, geometric(stated.theta, stated.rotary_dim))))


def proportional(stated: ExportedConfig) -> ReadRotation:
    """Rotation of a share of the pairs, with the exponents of the whole head. Engines ignore the factor."""
    rotated, pairs = stated.rotary_dim // 2, stated.head_dim // 2
    frequencies = geometric(stated.theta, stated.head_dim)[:rotated]
    return ReadRotation(frequencies + (0.0,) * (pairs - rotated))


def proportional_divided(stated: ExportedConfig) -> ReadRotation:
    """The same with frequencies divided by the factor, as transformers computes it."""
    return ReadRotation(tuple(w / stated.factor for w in proportional(stated).frequencies))


def yarn_frequencies(stated: ExportedConfig, *, truncate: bool) -> tuple[float, ...]:
    """YaRN's frequencies, with a ramp between the pairs of ``beta_fast`` and ``beta_slow`` turns.

    The turns are counted in the original length.

    Args:
        stated: parameters in the configuration.
        truncate: whether the two ends of the ramp are rounded to whole pairs.
    """
    dims = stated.rotary_dim

    def pair_with(turns: float) -> float:
        return dims * math.log(stated.original_length / (turns * 2 * math.pi)) / (2 * math.log(stated.theta))

    first = pair_with(stated.parameters.get("beta_fast", 32))
    last = pair_with(stated.parameters.get("beta_slow", 1))
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    width = last - first if last != first else 0.001
    slowed = (min(max((m - first) / width, 0.0), 1.0) for m in range(dims // 2))
    unscaled_frequencies = geometric(stated.theta, dims)
    return tuple(w * (1 - g) + w / stated.factor * g for w, g in zip(unscaled_frequencies, slowed, strict=True))


def mscale_quotient(stated: ExportedConfig) -> float | None:
    """Quotient of YaRN's temperatures for ``mscale`` and ``mscale_all_dim``; None if one of them is missing."""
    mscale, mscale_all = stated.parameters.get("mscale"), stated.parameters.get("mscale_all_dim")
    if mscale is None or mscale_all is None:
        return None
    return yarn_temperature(stated.factor, mscale) / yarn_temperature(stated.factor, mscale_all)


def yarn_temperature(factor: float, mscale: float = 1.0) -> float:
    """YaRN's temperature 0.1 mscale ln s + 1."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def longrope_default(stated: ExportedConfig) -> float:
    """Default temperature of LongRoPE: √(1 + ln s / ln L0), with s = ``max_position_embeddings`` / L0."""
    s = stated.max_positions / stated.original_length
    return 1.0 if s <= 1 else math.sqrt(1 + math.log(s) / math.log(stated.original_length))


def longrope_frequencies(stated: ExportedConfig, list_name: str) -> tuple[float, ...]:
    """LongRoPE's frequencies: each divided by its entry in the named list."""
    divisors = stated.parameters[list_name]
    return tuple(w / by for w, by in zip(geometric(stated.theta, stated.rotary_dim), divisors, strict=True))


def longrope_by_length(stated: ExportedConfig) -> ReadRotation:
    """LongRoPE with one list for all texts: the long list if the engine serves more than the original length.

    Raises:
        Unread: the model rotates neighbouring channels, for which engines have no LongRoPE.
    """
    if stated.interleaved:
        raise Unread("it has LongRoPE only for models that rotate channel m with m + d/2")
    length = "long" if stated.served_length > stated.original_length else "short"
    amplitude = stated.parameters.get(f"{length}_mscale") or longrope_default(stated)
    return ReadRotation(longrope_frequencies(stated, f"{length}_factor"), amplitude)


SHARED = {
    "default": unscaled,
    "linear": linear,
    "llama3": llama3,
    "longrope": longrope_by_length,
    "proportional": proportional,
}
"""RoPE type → formula that most engines use."""


def by_type(stated: ExportedConfig, own: Mapping[str, Callable[[ExportedConfig], ReadRotation]]) -> ReadRotation:
    """The rotation of the stated RoPE type, by the engine's ``own`` formula or else by that of most engines.

    Raises:
        Unread: the engine does not know the RoPE type.
    """
    formula = own.get(stated.rope_type) or SHARED.get(stated.rope_type)
    if formula is None:
        raise Unread(f"it does not know the RoPE type {stated.rope_type!r}")
    return formula(stated)
