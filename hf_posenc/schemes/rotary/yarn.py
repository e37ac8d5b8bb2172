"""YaRN: keep the fast pairs, slow the slow ones, and sharpen attention slightly.

    ω'_m = (1 − γ_m) ω_m + γ_m ω_m / s        γ_m = 0 for pairs of ≥ β_fast rotations in the trained length,
                                                    1 for those of ≤ β_slow rotations
    score' = (0.1 ln s + 1)² score             s = factor

`ntk_parts` has the same frequencies and leaves the scores alone. Peng, Quesnelle, Fan, Shippole 2023,
arXiv:2309.00071, sections 3.2 and 3.4. γ is linear in the pair index m, as in the released code and in transformers; in
the paper it is linear in the number of rotations (``ramp="rotations"``).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.options import Base, Positive
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.rotary import Stretched

Ramp = Literal["dim", "rotations"]


@register_scheme("ntk_parts", aliases=("by_parts",), paper="2309.00071", zero_shot=True)
class NTKByParts(Stretched):
    """RoPE with the frequencies of YaRN and no temperature. Static: keys are cached rotated."""

    formula = r"""
    \omega'_m &= (1 - \gamma_m) \, \omega_m + \gamma_m \, \frac{\omega_m}{s}, \quad s = \text{factor} \\
    \gamma_m &= \begin{cases}
    0 & \text{pairs of} \ge \beta_\mathrm{fast} \text{ rotations in the trained length} \\
    1 & \text{pairs of} \le \beta_\mathrm{slow} \text{ rotations}
    \end{cases}
    """

    option_aliases: ClassVar[dict[str, str]] = {"beta": "beta_fast", "alpha": "beta_slow"}

    def __init__(
        self,
        geometry: Geometry,
        *,
        beta_fast: Positive = 32.0,
        beta_slow: Positive = 1.0,
        ramp: Ramp = "dim",
        truncate: bool = True,
        base: Base | None = None,
    ) -> None:
        super().__init__(geometry, base=base)
        if beta_fast <= beta_slow:
            raise OptionOutOfRange(
                f"beta_fast must be greater than beta_slow, got {beta_fast:g} and {beta_slow:g}. "
                "The paper has 32 and 1."
            )
        self.beta_fast, self.beta_slow, self.ramp, self.truncate = beta_fast, beta_slow, ramp, truncate

    def frequencies(self) -> tuple[float, ...]:
        unscaled, s = super().frequencies(), self.geometry.factor
        return tuple((1 - g) * w + g * w / s for w, g in zip(unscaled, self.slowed(), strict=True))

    def slowed(self) -> list[float]:
        """γ of each pair, linear in its index or its rotations: 0 keeps its frequency, 1 divides it by the factor."""
        if self.ramp == "dim":
            first, last = self.pair_with_rotations(self.beta_fast), self.pair_with_rotations(self.beta_slow)
            return slowed_between(first, last, self.dims, truncate=self.truncate)
        rotations, width = map(self.rotations_of, super().frequencies()), self.beta_fast - self.beta_slow
        return [1 - min(max((count - self.beta_slow) / width, 0.0), 1.0) for count in rotations]

    def native(self) -> dict[str, Any] | None:
        """transformers' YaRN without a temperature; it has only the ramp by pair index."""
        if self.ramp != "dim":
            return None
        return self.scaled_as(
            "yarn", factor=self.geometry.factor, beta_fast=self.beta_fast, beta_slow=self.beta_slow,
            truncate=self.truncate, attention_factor=self.attention_factor,
            original_max_position_embeddings=self.geometry.trained_length,
        )  # fmt: skip


@register_scheme("yarn", paper="2309.00071", zero_shot=True)
class Yarn(NTKByParts):
    """RoPE with frequencies for ``factor`` times the trained length, and a temperature. Static: keys cached rotated.

    ``attention_factor`` multiplies cosines and sines, 0.1 ln s + 1 by default; logits get its square. DeepSeek's
    checkpoints have ``mscale`` and ``mscale_all_dim`` instead; the factor is then (0.1 mscale ln s + 1) / (0.1
    mscale_all_dim ln s + 1), as in transformers. Models with a latent cache (MLA) also multiply all logits by (0.1
    mscale_all_dim ln s + 1)², also those of channels that are not rotated; this scheme does the same on them.
    """

    formula = r"""
    \omega'_m &= (1 - \gamma_m) \, \omega_m + \gamma_m \, \frac{\omega_m}{s}, \quad s = \text{factor} \\
    \gamma_m &= \begin{cases}
    0 & \text{pairs of} \ge \beta_\mathrm{fast} \text{ rotations in the trained length} \\
    1 & \text{pairs of} \le \beta_\mathrm{slow} \text{ rotations}
    \end{cases} \\
    \mathrm{score}' &= (0.1 \ln s + 1)^2 \, \mathrm{score}
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        beta_fast: Positive = 32.0,
        beta_slow: Positive = 1.0,
        ramp: Ramp = "dim",
        truncate: bool = True,
        attention_factor: Positive | None = None,
        mscale: Positive | None = None,
        mscale_all_dim: Positive | None = None,
        base: Base | None = None,
    ) -> None:
        super().__init__(geometry, beta_fast=beta_fast, beta_slow=beta_slow, ramp=ramp, truncate=truncate, base=base)
        if (mscale is None) != (mscale_all_dim is None):
            raise OptionOutOfRange(
                f"mscale and mscale_all_dim go together, got {mscale} and {mscale_all_dim}. "
                "Give both, or attention_factor alone."
            )
        if mscale is not None and attention_factor is not None:
            raise OptionOutOfRange(
                f"attention_factor {attention_factor:g} and mscale {mscale:g} both set the scale of logits. "
                "Give one of them."
            )
        by_mscale = self.temperature(mscale or 1.0) / self.temperature(mscale_all_dim or 0.0)
        self.attention_factor = attention_factor or by_mscale
        in_softmax = geometry.rotary is not None and geometry.rotary.scales_softmax
        self.mscale_in_softmax = mscale_all_dim if in_softmax else None

    def temperature(self, mscale: float) -> float:
        """YaRN's temperature, 0.1 mscale ln s + 1."""
        return 0.1 * mscale * math.log(self.geometry.factor) + 1.0

    def logit_scale(self) -> float:
        own = self.attention_factor**2 if self.scales_logits else 1.0
        return own * self.temperature(self.mscale_in_softmax or 0.0) ** 2

    def native(self) -> dict[str, Any] | None:
        """transformers' YaRN, with the temperature of all logits if the model's class reads it."""
        parameters = super().native()
        if parameters is None or self.mscale_in_softmax is None:
            return parameters
        return parameters | {"mscale_all_dim": self.mscale_in_softmax}


def slowed_between(first: float, last: float, dims: int, *, truncate: bool = True) -> list[float]:
    """γ of each pair of ``dims`` channels: 0 up to pair ``first``, 1 from ``last`` on, linear between.

    Args:
        first, last: fractional pair indices.
        dims: rotated channels of a head.
        truncate: whether the ramp starts and ends at whole pairs.
    """
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    width = last - first or 0.001  # a ramp of zero width becomes a step, as in the released code
    return [min(max((m - first) / width, 0.0), 1.0) for m in range(dims // 2)]
