"""MrRoPE, mixed-radix RoPE: slow the pairs between fast and slow ones by shares of the factor that add up to it.

    ω'_m = ω_m / s^e_m         s = factor
    e_m  = t (t + 1) / n (n + 1)      ``kind="pro"``: each pair takes a greater share of the factor than the one before
           t / n                      ``"uni"``: all take the same
    t    = m − l, clipped to 0 … n,   n = h − l
    score' = (0.1 ln s + 1)² score

l is the last pair of more than β_fast rotations in the trained length, or 0, and h the first of fewer than β_slow. Both
kinds slow pair h and all slower ones by s, like YaRN. Between l and h, the growing shares of "pro" keep fast pairs
nearer to their own frequencies. Without a pair h, the scheme is refused.

Tian, Zhu, Liu, Wang, Wang 2026, "MrRoPE: Mixed-radix Rotary Position Embedding", arXiv:2601.22181, section 3.2.
"""

from __future__ import annotations

import math
from typing import Literal

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.options import Base, Positive
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.rotary import Stretched

Kind = Literal["pro", "uni"]


@register_scheme("mrrope", aliases=("mixed_radix",), paper="2601.22181", zero_shot=True)
class MrRoPE(Stretched):
    """RoPE whose pairs are slowed by growing shares of the factor, and a temperature. Static: keys cached rotated.

    ``attention_factor`` multiplies cosines and sines, 0.1 ln s + 1 by default; logits get its square.
    """

    formula = r"""
    \omega'_m &= \omega_m \, s^{-e_m}, \quad s = \text{factor} \\
    e_m &= \frac{t \, (t + 1)}{n \, (n + 1)} \quad \text{(pro)}, \qquad e_m = \frac{t}{n} \quad \text{(uni)} \\
    t &= m - l \text{ clipped to } 0 \dots n, \quad n = h - l \\
    \mathrm{score}' &= (0.1 \ln s + 1)^2 \, \mathrm{score}
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        kind: Kind = "pro",
        beta_fast: Positive = 32.0,
        beta_slow: Positive = 1.0,
        attention_factor: Positive | None = None,
        base: Base | None = None,
    ) -> None:
        super().__init__(geometry, base=base)
        if beta_fast <= beta_slow:
            raise OptionOutOfRange(
                f"beta_fast must be greater than beta_slow, got {beta_fast:g} and {beta_slow:g}. "
                "The paper has 32 and 1."
            )
        self.kind, self.beta_fast, self.beta_slow = kind, beta_fast, beta_slow
        self.attention_factor = attention_factor or 0.1 * math.log(geometry.factor) + 1.0
        self.last_fast, self.first_slow = self.borders()

    def borders(self) -> tuple[int, int]:
        """The last fast pair, or 0, and the first slow pair after it.

        Raises:
            OptionOutOfRange: no pair is slow.
        """
        rotations = [self.rotations_of(w) for w in super().frequencies()]
        slow = [m for m, count in enumerate(rotations) if count < self.beta_slow]
        if not slow:
            raise OptionOutOfRange(
                f"The slowest pair makes {min(rotations):.3g} rotations in {self.geometry.trained_length} tokens, and "
                f"mrrope needs one of fewer than beta_slow = {self.beta_slow:g}. Use yarn, or a greater beta_slow."
            )
        fast = sum(count > self.beta_fast for count in rotations)
        return max(fast - 1, 0), max(slow[0], fast, 1)

    def share(self, pair: int) -> float:
        """Exponent e of a pair, 0 … 1."""
        n = self.first_slow - self.last_fast
        t = min(max(pair - self.last_fast, 0), n)
        return t / n if self.kind == "uni" else t * (t + 1) / (n * (n + 1))

    def frequencies(self) -> tuple[float, ...]:
        """Radians per token of each pair, divided by its share of the factor, s^e."""
        return tuple(w / self.geometry.factor ** self.share(m) for m, w in enumerate(super().frequencies()))

    def logit_scale(self) -> float:
        return self.attention_factor**2 if self.scales_logits else 1.0
