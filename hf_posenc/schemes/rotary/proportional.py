"""p-RoPE: keep the fast frequencies and set the slow ones to zero, as those carry meaning rather than position.

    ω'_m = ω_m / s for the first ⌊p d / 2⌋ pairs,  0 for the others          ω_m = θ^(−2m / d),  s = factor

It rotates as many pairs as `partial` with ``fraction=p``, but with the frequencies of a full head. In the half layout
the channels differ too: the last ones of each half are not rotated.

Barbero, Vitvitskyi, Perivolaropoulos, Pascanu, Veličković 2024, "Round and Round We Go!", arXiv:2410.06205, section 6;
transformers' ``proportional`` (Gemma 4, where p is 0.25).
"""

from __future__ import annotations

from typing import Any

from hf_posenc.core.geometry import Geometry, Layout
from hf_posenc.schemes.options import Base, UnitInterval
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.rotary import Rotary


@register_scheme("proportional", aliases=("p_rope", "prope"), paper="2410.06205")
class Proportional(Rotary):
    """RoPE without its slowest pairs. No parameters; little damage to a trained model near p = 1, else tune."""

    formula = r"""
    \omega'_m &= \begin{cases}
    \omega_m / s & m < \lfloor p \, d / 2 \rfloor \\
    0 & \text{otherwise}
    \end{cases} \\
    \omega_m &= \theta^{-2m/d}, \quad s = \text{factor}
    """

    def __init__(
        self, geometry: Geometry, *, p: UnitInterval = 0.75, base: Base | None = None, layout: Layout | None = None
    ) -> None:
        super().__init__(geometry, base=base, layout=layout)
        self.p, self.rotated_pairs = p, int(p * self.dims // 2)

    def frequencies(self) -> tuple[float, ...]:
        scaled = (w / self.geometry.factor for w in super().frequencies())
        return tuple(w if m < self.rotated_pairs else 0.0 for m, w in enumerate(scaled))

    def native(self) -> dict[str, Any] | None:
        if not self.rotates_all:
            return None  # transformers has a single number for rotated channels and rotated pairs
        factor = {} if self.geometry.factor == 1 else {"factor": self.geometry.factor}
        return self.scaled_as("proportional", partial_rotary_factor=self.p, **factor)
