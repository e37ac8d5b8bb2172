"""Position interpolation: scale the positions of the target length into the trained range.

    ω'_m = ω_m / s        s = factor; the same as position p / s in place of p

Chen, Wong, Chen, Tian 2023, arXiv:2306.15595, section 2; kaiokendev's "linear scaling", 2023.
"""

from __future__ import annotations

from typing import Any

from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.rotary import Stretched


@register_scheme("pi", aliases=("linear",), paper="2306.15595", zero_shot=True)
class PositionInterpolation(Stretched):
    """Every frequency divided by the factor. Adjacent positions become hard to distinguish: tune briefly beyond 2×."""

    formula = r"""
    \omega'_m = \omega_m / s, \quad s = \text{factor; the same as position } p / s \text{ in place of } p
    """

    def frequencies(self) -> tuple[float, ...]:
        return tuple(w / self.geometry.factor for w in super().frequencies())

    def native(self) -> dict[str, Any] | None:
        return self.scaled_as("linear", factor=self.geometry.factor)
