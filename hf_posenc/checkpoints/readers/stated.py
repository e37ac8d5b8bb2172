"""What a configuration states of a rotation, and the formulas that engines share.

The formulas are written from reading each engine, not from `hf_posenc.schemes`: where an engine reads a configuration
otherwise than the scheme means it, the two differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


class Unread(Exception):
    """An engine does not rotate by these parameters; the message says what it does instead."""


@dataclass(frozen=True)
class Stated:
    """What an engine finds in a configuration on the layers of one type.

    Attributes:
        parameters: their ``rope_parameters``.
        model_type: of the model, such as ``llama``.
        head_dim: channels of a head.
        interleaved: whether the model rotates channels 2m and 2m + 1 together.
        max_positions: ``max_position_embeddings``.
        served_length: the longest text that the engine is started for, in tokens.
        layers: the type of layers, such as ``sliding_attention``; None where all share their parameters.
        old_keys: what the configuration says in the form before transformers 5; empty where it cannot.
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
        """Whether the layers are those with a window, in a model that has both."""
        return self.layers == "sliding_attention"

    @property
    def rope_type(self) -> str:
        """Which scaling, in transformers' words."""
        return self.parameters["rope_type"]

    @property
    def theta(self) -> float:
        """RoPE's base."""
        return self.parameters["rope_theta"]

    @property
    def factor(self) -> float:
        """How many times longer texts become; 1 where none is stated."""
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
    """What an engine computes.

    Attributes:
        frequencies: radians per token of each pair.
        amplitude: factor of cosines and sines, whose square scales the rotated part of the logits.
    """

    frequencies: tuple[float, ...]
    amplitude: float = 1.0


def unscaled(stated: Stated) -> ReadRotation:
    """RoPE without a scaling: θ^(−2m / d)."""
    return ReadRotation(powers(stated.theta, stated.rotary_dim))


def unscaled_head(stated: Stated) -> ReadRotation:
    """RoPE without a scaling of all channels of a head, whatever share of them is stated."""
    return ReadRotation(powers(stated.theta, stated.head_dim))


def with_base(stated: Stated, theta: float) -> ReadRotation:
    """RoPE without a scaling, of a base that is found elsewhere."""
    return unscaled(replace(stated, parameters={**stated.parameters, "rope_theta": theta}))


def interpolated(stated: Stated) -> ReadRotation:
    """Every frequency divided by the factor."""
    return ReadRotation(tuple(w / stated.factor for w in powers(stated.theta, stated.rotary_dim)))


def llama3(stated: Stated) -> ReadRotation:
    """Wavelengths above ``original / low_freq_factor`` stretched by the factor, shorter ones less or not at all."""
    low, high = stated.parameters["low_freq_factor"], stated.parameters["high_freq_factor"]

    def scaled(w: float) -> float:
        turns = stated.original_length * w / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        return (1 - kept) * w / stated.factor + kept * w

    return ReadRotation(tuple(map(scaled, powers(stated.theta, stated.rotary_dim))))


def proportional(stated: Stated) -> ReadRotation:
    """The share of pairs that are rotated, at the exponents of the whole head; engines leave out the factor."""
    rotated, pairs = stated.rotary_dim // 2, stated.head_dim // 2
    frequencies = powers(stated.theta, stated.head_dim)[:rotated]
    return ReadRotation(frequencies + (0.0,) * (pairs - rotated))


def proportional_divided(stated: Stated) -> ReadRotation:
    """The same with the factor, as transformers computes it."""
    return ReadRotation(tuple(w / stated.factor for w in proportional(stated).frequencies))


def powers(theta: float, dims: int) -> tuple[float, ...]:
    """θ^(−2m / d) of each pair."""
    return tuple(theta ** (-2 * m / dims) for m in range(dims // 2))


def yarn_frequencies(stated: Stated, *, truncate: bool) -> tuple[float, ...]:
    """YaRN's frequencies, between the pairs of ``beta_fast`` and ``beta_slow`` turns in the original length.

    Args:
        stated: by the configuration.
        truncate: whether the two ends are rounded to whole pairs.
    """
    dims = stated.rotary_dim

    def pair_with(turns: float) -> float:
        return dims * math.log(stated.original_length / (turns * 2 * math.pi)) / (2 * math.log(stated.theta))

    first, last = (pair_with(stated.parameters.get(name, of)) for name, of in (("beta_fast", 32), ("beta_slow", 1)))
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    width = last - first if last != first else 0.001
    slowed = (min(max((m - first) / width, 0.0), 1.0) for m in range(dims // 2))
    return tuple(w * (1 - g) + w / stated.factor * g for w, g in zip(powers(stated.theta, dims), slowed, strict=True))


def by_mscales(stated: Stated) -> float | None:
    """The quotient of YaRN's temperatures of both mscales; None where not both are stated."""
    mscale, of_all = stated.parameters.get("mscale"), stated.parameters.get("mscale_all_dim")
    if mscale is None or of_all is None:
        return None
    return grown(stated.factor, mscale) / grown(stated.factor, of_all)


def grown(factor: float, mscale: float = 1.0) -> float:
    """YaRN's temperature 0.1 mscale ln s + 1."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def longrope_default(stated: Stated) -> float:
    """√(1 + ln s / ln L0), with s = ``max_position_embeddings`` / L0: what engines take where they read no other."""
    s = stated.max_positions / stated.original_length
    return 1.0 if s <= 1 else math.sqrt(1 + math.log(s) / math.log(stated.original_length))


def divided(stated: Stated, factors: str) -> tuple[float, ...]:
    """LongRoPE: each frequency divided by its entry of a list."""
    divisors = stated.parameters[factors]
    return tuple(w / by for w, by in zip(powers(stated.theta, stated.rotary_dim), divisors, strict=True))


def longrope_by_length(stated: Stated) -> ReadRotation:
    """LongRoPE with one list for a text: the long one where the engine is started for more than the original length.

    Raises:
        Unread: the model rotates neighbouring channels, for which engines have no LongRoPE.
    """
    if stated.interleaved:
        raise Unread("it has LongRoPE only for models that rotate channel m with m + d/2")
    length = "long" if stated.served_length > stated.original_length else "short"
    amplitude = stated.parameters.get(f"{length}_mscale") or longrope_default(stated)
    return ReadRotation(divided(stated, f"{length}_factor"), amplitude)


SHARED = {
    "default": unscaled,
    "linear": interpolated,
    "llama3": llama3,
    "longrope": longrope_by_length,
    "proportional": proportional,
}
"""RoPE type → the formula that most engines have for it."""


def by_type(stated: Stated, own: Mapping[str, Callable[[Stated], ReadRotation]]) -> ReadRotation:
    """What the formula of the stated RoPE type gives: an engine's own, else that of most engines.

    Raises:
        Unread: there is none.
    """
    formula = own.get(stated.rope_type) or SHARED.get(stated.rope_type)
    if formula is None:
        raise Unread(f"it does not know the RoPE type {stated.rope_type!r}")
    return formula(stated)
