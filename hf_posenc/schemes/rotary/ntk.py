"""NTK-aware scaling: increase the base, which slows the slowest pair by the factor and the fastest not at all.

    ω'_m = base'^(−2m / d)          base' = base · s^(d / (d − 2)),  s = factor

Pair 0 is unchanged, the last pair rotates exactly s times as slowly. Every pair in between is slowed by less than s, so
the usable length falls short of the factor: choose a larger factor than needed.

bloc97 2023, reddit.com/r/LocalLLaMA/comments/14lz7j5; Peng et al. 2023, arXiv:2309.00071, section 3.1.
"""

from __future__ import annotations

from typing import Any

from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.rotary import Stretched


@register_scheme(
    "ntk", aliases=("ntk_aware",), paper="https://www.reddit.com/r/LocalLLaMA/comments/14lz7j5", zero_shot=True
)
class NTK(Stretched):
    """RoPE with a larger base. Static: keys are cached rotated. Usable untrained to 2–4×."""

    formula = r"""
    \omega'_m &= \mathrm{base}'^{\,-2m/d} \\
    \mathrm{base}' &= \mathrm{base} \cdot s^{d / (d - 2)}, \quad s = \text{factor}
    """

    def frequencies(self) -> tuple[float, ...]:
        """Radians per token of each pair, under the larger base."""
        return stretched(super().frequencies(), self.geometry.factor)

    def native(self) -> dict[str, Any] | None:
        """transformers' default type with a larger base."""
        pairs = len(self.frequencies())
        return self.scaled_as("default") | {
            "rope_theta": self.base * self.geometry.factor ** (pairs / max(pairs - 1, 1))
        }


def stretched(frequencies: tuple[float, ...], factor: float) -> tuple[float, ...]:
    """Geometric frequencies under the larger base, ω_m · factor^(−2m / (d − 2)): the last is divided by ``factor``."""
    last = max(len(frequencies) - 1, 1)
    return tuple(w * factor ** (-m / last) for m, w in enumerate(frequencies))
