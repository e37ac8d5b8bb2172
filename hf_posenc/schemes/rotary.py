"""RoPE: rotate pairs of query and key channels by position; their product then depends on the distance alone.

    q'_i = R(i) q_i,  k'_j = R(j) k_j,   R(p) turns pair m by p ω_m,   ω_m = θ^(−2m / d)
    q'_i · k'_j = Σ_m Re[q_m k*_m e^(i ω_m (i − j))]

On a host that has RoPE this is what it does already; on GPT-2 and BERT it replaces the learned table.

Su, Lu, Pan, Murtadha, Wen, Liu 2021, "RoFormer", arXiv:2104.09864, section 3.
"""

from __future__ import annotations

import math

from hf_posenc.geometry import Geometry, Layout, Rotation, geometric
from hf_posenc.options import Base
from hf_posenc.registry import register_scheme
from hf_posenc.schemes.base import Scheme


class Rotary(Scheme):
    """Base of the schemes that rotate by fixed frequencies: they override `frequencies`, perhaps `logit_scale`."""

    def __init__(self, geometry: Geometry, *, base: float | None = None, layout: Layout | None = None) -> None:
        super().__init__(geometry)
        host = geometry.rotary
        self.base = base if base is not None else host.base if host else 10_000.0
        self.layout: Layout = layout or (host.rotation.layout if host else "half")

    def frequencies(self) -> tuple[float, ...]:
        """Radians per token of each rotated pair, fastest first."""
        return geometric(self.base, self.geometry.head_dim)

    def rotation(self) -> Rotation:
        return Rotation(self.frequencies(), self.layout)

    def pair_turning(self, turns: float) -> float:
        """Index, fractional, of the pair that turns that many times within the trained length."""
        d, trained = self.geometry.head_dim, self.geometry.trained_length
        return d * math.log(trained / (2 * math.pi * turns)) / (2 * math.log(self.base))


@register_scheme("rope", aliases=("rotary", "roformer"), paper="2104.09864", zero_shot=True)
class RoPE(Rotary):
    """Rotation by the unscaled frequencies. No parameters; relative; poor beyond the trained length."""

    def __init__(self, geometry: Geometry, *, base: Base | None = None, layout: Layout | None = None) -> None:
        super().__init__(geometry, base=base, layout=layout)
