"""Position interpolation: scale the positions of the target length into the trained range.

    ω'_m = ω_m / s        s = factor; the same as position p / s in place of p

Chen, Wong, Chen, Tian 2023, arXiv:2306.15595, section 2; kaiokendev's "linear scaling", 2023.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hf_posenc.core.geometry import Geometry
from hf_posenc.schemes.options import Base
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.rotary import Rotary


@register_scheme("pi", aliases=("linear",), paper="2306.15595", zero_shot=True)
class PositionInterpolation(Rotary):
    """Every frequency divided by the factor. Adjacent positions become hard to distinguish: tune briefly beyond 2×."""

    formula = r"""
    \omega'_m = \omega_m / s, \quad s = \text{factor; the same as position } p / s \text{ in place of } p
    """

    stretches: ClassVar[bool] = True

    def __init__(self, geometry: Geometry, *, base: Base | None = None) -> None:
        super().__init__(geometry, base=base)

    def frequencies(self) -> tuple[float, ...]:
        return tuple(w / self.geometry.factor for w in super().frequencies())

    def native(self) -> dict[str, Any] | None:
        return self.scaled_as("linear", factor=self.geometry.factor)
