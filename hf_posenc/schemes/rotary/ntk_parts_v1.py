"""NTK-by-parts, first release: interpolate the slow pairs, change the base of middle ones, keep the fast ones.

    mixed_m = α_m ω_m / s + (1 − α_m) ω^ntk_m         α: 0 for ≥ 1.25 rotations in the trained length, 1 for ≤ 0.75
    ω'_m    = γ_m mixed_m + (1 − γ_m) ω_m             γ: 0 for ≥ 16, 1 for ≤ 2

Both ramps are linear in the pair index, between rounded bounds; ω^ntk are the frequencies of `ntk`, s = factor. The
bounds were found on LLaMA. YaRN's paper drops the change of base; that is `ntk_parts`.

bloc97 2023, github.com/jquesnelle/yarn, ``LlamaPartNTKScaledRotaryEmbedding``.
"""

from __future__ import annotations

from collections.abc import Sequence

from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.ntk import stretched
from hf_posenc.schemes.rotary.rotary import Stretched
from hf_posenc.schemes.rotary.yarn import slowed_between


@register_scheme("ntk_parts_v1", paper="https://github.com/jquesnelle/yarn", zero_shot=True)
class NTKByPartsV1(Stretched):
    """RoPE with slow pairs interpolated, middle ones under a larger base, fast ones kept. Static, no options."""

    formula = r"""
    \mathrm{mixed}_m &= \alpha_m \, \omega_m / s + (1 - \alpha_m) \, \omega^\mathrm{ntk}_m \\
    \omega'_m &= \gamma_m \, \mathrm{mixed}_m + (1 - \gamma_m) \, \omega_m \\
    \alpha_m &= 0 \text{ for} \ge 1.25 \text{ rotations in the trained length}, \; 1 \text{ for} \le 0.75 \\
    \gamma_m &= 0 \text{ for} \ge 16, \; 1 \text{ for} \le 2
    """

    def frequencies(self) -> tuple[float, ...]:
        unscaled, s = super().frequencies(), self.geometry.factor
        interpolated = slowed_between(self.pair_with_rotations(1.25), self.pair_with_rotations(0.75), self.dims)
        scaled = slowed_between(self.pair_with_rotations(16.0), self.pair_with_rotations(2.0), self.dims)
        mixed = blended(interpolated, [w / s for w in unscaled], stretched(unscaled, s))
        return tuple(blended(scaled, mixed, unscaled))


def blended(shares: Sequence[float], first: Sequence[float], second: Sequence[float]) -> list[float]:
    """share · first + (1 − share) · second, pair by pair."""
    return [g * a + (1 - g) * b for g, a, b in zip(shares, first, second, strict=True)]
