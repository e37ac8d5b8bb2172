"""ABF, adjusted base frequency: RoPE with a larger base, for continued training.

    ω_m = base^(−2m / d),   base = 500 000

All pairs but the fastest rotate more slowly, independently of the factor: only the base counts. A published lower bound
for a context of L tokens is base ≥ 0.0424 L^1.63 (arXiv:2405.14591).

Xiong et al. 2023, "Effective Long-Context Scaling of Foundation Models", arXiv:2309.16039, section 2.1.
"""

from __future__ import annotations

from typing import Any

from hf_posenc.core.geometry import Geometry, Layout
from hf_posenc.schemes.options import Base
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.rotary import Rotary


@register_scheme("abf", aliases=("base_change",), paper="2309.16039")
class AdjustedBase(Rotary):
    """RoPE with another base, by default Llama 2 Long's. Continue training after the change."""

    formula = r"\omega_m = \mathrm{base}^{-2m/d}, \qquad \mathrm{base} = 500\,000"

    def __init__(self, geometry: Geometry, *, base: Base = 500_000.0, layout: Layout | None = None) -> None:
        super().__init__(geometry, base=base, layout=layout)

    def native(self) -> dict[str, Any] | None:
        return self.scaled_as("default")
