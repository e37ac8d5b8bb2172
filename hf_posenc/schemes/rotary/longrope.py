"""LongRoPE: a searched scaling factor for every pair; short sequences keep (almost) their unscaled rotation.

    ω'_m = ω_m / short_m    for queries i < L0            L0 = trained length
           ω_m / long_m     for queries i ≥ L0            short, long: d / 2 numbers ≥ 1
    score' = (1 + ln s / ln L0) score                     s = factor, at every length

A query and all its keys are rotated alike. The rotation of token i depends on the sequence length up to it, never on
later tokens. The cache stores each key twice, once for each rotation. One length for a whole call, as in other
implementations, makes cached decoding differ from a single forward pass. In an encoder, the length of the sequence
counts for all its queries.

``examples/search_longrope.py`` finds ``long_factor`` on a corpus. By default the scaling is that of `ntk_parts`, an
initial candidate of the paper's search, and every ``short_factor`` is 1.

Ding et al. 2024, "LongRoPE", arXiv:2402.13753, sections 3 and 4; microsoft/LongRoPE; transformers' ``longrope``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.constants import exact_dtype
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry, Rotation
from hf_posenc.core.regions import ONE_REGION, Band, Region
from hf_posenc.core.terms import RowRotation
from hf_posenc.errors import LengthContradiction, OptionOutOfRange
from hf_posenc.schemes.absolute.text_length import text_lengths
from hf_posenc.schemes.options import AtLeastOne, Base, NotNegativeInt, Positive
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.rotary import Stretched, own_within_trained
from hf_posenc.schemes.rotary.yarn import NTKByParts


@register_scheme("longrope", aliases=("su", "phi3"), zero_shot=True, cache="copies", paper="2402.13753")
class LongRoPE(Stretched):
    """RoPE with one scaling factor per pair, another beyond the trained length. Usable to 8× with searched factors.

    ``attention_factor`` multiplies cosines and sines, √(1 + ln s / ln L0) by default; logits get its square.
    ``keep_start`` > 0 (the number of first tokens with unscaled angles) is refused. The angle would be discontinuous
    where scaling begins, and scores would depend on more than the distance. The paper's code offers it; transformers
    and Phi-3 do not.
    """

    formula = r"""
    \omega'_m &= \begin{cases}
    \omega_m / \mathrm{short}_m & \text{for queries } i < L_0 \\
    \omega_m / \mathrm{long}_m & \text{for queries } i \ge L_0
    \end{cases} \\
    \mathrm{score}' &= \left( 1 + \frac{\ln s}{\ln L_0} \right) \mathrm{score} \\
    L_0 &= \text{trained length}, \quad s = \text{factor at every length}, \\
    &\mathrm{short}, \mathrm{long} : \text{$d/2$ numbers} \ge 1
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        short_factor: Sequence[AtLeastOne] | None = None,
        long_factor: Sequence[AtLeastOne] | None = None,
        attention_factor: Positive | None = None,
        keep_start: NotNegativeInt = 0,
        base: Base | None = None,
    ) -> None:
        super().__init__(geometry, base=base)
        if keep_start:
            raise OptionOutOfRange(
                f"keep_start must be 0, got {keep_start}: unscaled angles at the first tokens are not a function "
                "of distance. Leave the option out."
            )
        scaled = NTKByParts(geometry, base=base).frequencies()
        unscaled = super().frequencies()
        self.short_factor = self._checked("short_factor", short_factor) or (1.0,) * len(unscaled)
        self.long_factor = self._checked("long_factor", long_factor) or divided(unscaled, scaled)
        self.attention_factor = default_factor(geometry) if attention_factor is None else attention_factor
        self.idle = frozenset({"row_rotation"} if geometry.causal else {"rotation", "regions"})

    def frequencies(self) -> tuple[float, ...]:
        """Radians per token of each pair for queries within the trained length."""
        return divided(super().frequencies(), self.short_factor)

    def long_frequencies(self) -> tuple[float, ...]:
        """Radians per token of each pair for queries beyond the trained length."""
        return divided(super().frequencies(), self.long_factor)

    @property
    def short(self) -> Rotation:
        """Rotation of queries within the trained length."""
        return self.rotation_by(self.frequencies())

    @property
    def long(self) -> Rotation:
        """Rotation of queries beyond the trained length."""
        return self.rotation_by(self.long_frequencies())

    def rotation(self) -> Rotation | None:  # type: ignore[override]  # an encoder rotates by its sequence length
        return self.short if self.geometry.causal else None

    def row_rotation(self) -> RowRotation | None:
        """In an encoder, the rotation for the length of the sequence; None in a decoder."""
        return None if self.geometry.causal else RowRotation(text_lengths, self.rotation_of, self.frequencies_of)

    def rotation_of(self, length: int) -> Rotation:
        """The rotation of a sequence of one length."""
        return self.short if length <= self.geometry.trained_length else self.long

    def frequencies_of(self, lengths: Tensor) -> Tensor:
        """Radians per token of each pair in sequences of ``lengths […]``, ``[…, pairs]``, float64."""
        exact = exact_dtype(lengths.device)
        short, long = (
            torch.tensor(w, dtype=exact, device=lengths.device) for w in (self.frequencies(), self.long_frequencies())
        )
        return torch.where((lengths <= self.geometry.trained_length)[..., None], short, long)

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        """In a decoder, one region of queries within the trained length, and one of queries beyond it."""
        short, long, edge = self.short, self.long, self.geometry.trained_length
        if short == long or not self.geometry.causal:
            return ONE_REGION
        return Region(Band(rows_until=edge), rotation=short), Region(Band(rows_from=edge), rotation=long)

    def logit_scale(self) -> float:
        return self.attention_factor**2 if self.scales_logits else 1.0

    @property
    def scales_logits(self) -> bool:
        """Also true in encoders, because a length-dependent rotation has no amplitude."""
        return self.rotates_all or not self.geometry.causal

    @property
    def unchanged_below(self) -> int:
        """The trained length if rotation and logit scale within it are the model's own; else 0."""
        return own_within_trained(self.geometry, self.short, self.logit_scale())

    def native_within_trained(self) -> dict[str, Any]:
        """Parameters of transformers, which rotates queries by the length of the call, and keys by it when cached."""
        return self.scaled_as(
            "longrope", short_factor=list(self.short_factor), long_factor=list(self.long_factor),
            factor=self.geometry.factor, attention_factor=self.attention_factor,
            original_max_position_embeddings=self.geometry.trained_length,
        )  # fmt: skip

    def _checked(self, name: str, factors: Sequence[float] | None) -> tuple[float, ...]:
        pairs = self.dims // 2
        if factors is not None and len(factors) != pairs:
            raise OptionOutOfRange(
                f"{name} must have {pairs} numbers, one per rotated pair of this model, got {len(factors)}. "
                "examples/search_longrope.py finds them."
            )
        return tuple(map(float, factors or ()))


def divided(frequencies: tuple[float, ...], factors: tuple[float, ...]) -> tuple[float, ...]:
    """Divide frequencies by factors, pair by pair."""
    return tuple(w / f for w, f in zip(frequencies, factors, strict=True))


def default_factor(geometry: Geometry) -> float:
    """√(1 + ln s / ln L0).

    Raises:
        LengthContradiction: the trained length is 1, which has no logarithm to divide by.
    """
    if geometry.trained_length < 2:
        raise LengthContradiction("longrope needs a trained length of at least 2, got 1. Pass trained_length=.")
    return math.sqrt(1 + math.log(geometry.factor) / math.log(geometry.trained_length))
