"""Llama 3.1's scaling: keep pairs with many rotations in the trained length, slow those with few, blend in between.

    ω'_m = (1 − g_m) ω_m / s + g_m ω_m          g_m = (r_m − low) / (high − low), clipped to 0 … 1

r_m = trained length · ω_m / 2π is the number of rotations, s = factor. This is YaRN's idea with narrower bounds, a ramp
that is linear in the number of rotations, and no temperature.

Grattafiori et al. 2024, "The Llama 3 Herd of Models", arXiv:2407.21783; the released code.
"""

from __future__ import annotations

from typing import Any

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.options import Base, Positive
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.rotary import Stretched


@register_scheme("llama3", paper="2407.21783", zero_shot=True)
class Llama3(Stretched):
    """RoPE with pairs of at most ``low_freq_factor`` rotations slowed, those of at least ``high_freq_factor`` kept."""

    formula = r"""
    \omega'_m &= (1 - g_m) \, \frac{\omega_m}{s} + g_m \, \omega_m \\
    g_m &= \frac{r_m - \mathrm{low}}{\mathrm{high} - \mathrm{low}} \quad \text{clipped to } 0 \dots 1
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        low_freq_factor: Positive = 1.0,
        high_freq_factor: Positive = 4.0,
        base: Base | None = None,
    ) -> None:
        super().__init__(geometry, base=base)
        if high_freq_factor <= low_freq_factor:
            raise OptionOutOfRange(
                f"high_freq_factor must be greater than low_freq_factor, got {high_freq_factor:g} and "
                f"{low_freq_factor:g}. The released models have 4 and 1."
            )
        self.low_freq_factor, self.high_freq_factor = low_freq_factor, high_freq_factor

    def frequencies(self) -> tuple[float, ...]:
        """Radians per token of each pair, blended according to its number of rotations."""
        low, width, s = self.low_freq_factor, self.high_freq_factor - self.low_freq_factor, self.geometry.factor
        unscaled = super().frequencies()
        kept = [min(max((self.rotations_of(w) - low) / width, 0.0), 1.0) for w in unscaled]
        return tuple((1 - g) * w / s + g * w for w, g in zip(unscaled, kept, strict=True))

    def native(self) -> dict[str, Any] | None:
        return self.scaled_as(
            "llama3", factor=self.geometry.factor, low_freq_factor=self.low_freq_factor,
            high_freq_factor=self.high_freq_factor, original_max_position_embeddings=self.geometry.trained_length,
        )  # fmt: skip
