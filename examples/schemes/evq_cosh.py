"""EVQ-Cosh: choose RoPE's frequencies by a cosh-shaped density, so that fast pairs stand closer than slow ones.

    ω_m = θ^(−φ_m)        φ_m = 1 − arsinh((1 − u_m) sinh τ) / τ        u_m = (m + ½) / K,  m = 0 … K − 1
    τ   = d / √L          d = channels of a head, K = rotated pairs, L = trained length

φ_m are quantiles of the density ρ(φ) = τ cosh(τ (1 − φ)) / sinh τ on the logarithm of the frequency. The authors derive
it as the minimiser of a surrogate of phase collisions. τ → 0 gives a uniform density: RoPE, but for the grid.

Traps. With ``grid="midpoint"``, which the authors train with, the fastest pair turns by less than one radian per token,
and τ → 0 is not exactly RoPE. ``grid="endpoint"``, u_m = m / K, keeps ω_0 = 1. The formula of τ is a scaling law for
models trained from scratch at length L. A model trained with RoPE needs training after the change.

"EVQ-Cosh: Variational Frequency Allocation for Rotary Position Embedding" 2026, section "Practical EVQ instantiation":
a submission in review, in ``paper/`` of github.com/misaya-yang/hybrid-rope. Experimental.

    hf-posenc check --model starter:llama --scheme evq_cosh --import examples/schemes/evq_cosh.py
"""

from __future__ import annotations

import math
from typing import Literal

from hf_posenc.extend import Base, Geometry, OptionOutOfRange, Positive, Rotary, register_scheme

LARGEST_TAU = 50.0
"""Beyond it, every frequency but the last few is nearly θ^0 = 1; at 710, sinh overflows."""


@register_scheme("evq_cosh", aliases=("evq",), paper="https://github.com/misaya-yang/hybrid-rope")
class EvqCosh(Rotary):
    """RoPE with a cosh-shaped allocation of frequencies. No parameters; for training from scratch. Experimental.

    ``tau`` is τ (default: d / √L); ``grid="endpoint"`` keeps the fastest frequency at one radian per token.
    """

    formula = r"""
    \omega_m &= \theta^{-\varphi_m}, \quad
      \varphi_m = 1 - \tfrac{1}{\tau} \operatorname{arsinh} \left( (1 - u_m) \sinh \tau \right) \\
    u_m &= \frac{m + 1/2}{K}, \quad \tau = \frac{d}{\sqrt L}
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        tau: Positive | None = None,
        grid: Literal["midpoint", "endpoint"] = "midpoint",
        base: Base | None = None,
    ) -> None:
        super().__init__(geometry, base=base)
        self.tau = geometry.head_dim / math.sqrt(geometry.trained_length) if tau is None else tau
        self.grid = grid
        if self.tau > LARGEST_TAU:
            raise OptionOutOfRange(f"tau is {self.tau:g}, and the greatest is {LARGEST_TAU:g}. Pass a smaller tau.")

    def frequencies(self) -> tuple[float, ...]:
        """Radians per token of each pair, fastest first: θ to the minus quantiles of the density."""
        pairs, shift = self.dims // 2, 0.5 if self.grid == "midpoint" else 0.0
        above = ((1 - (m + shift) / pairs) * math.sinh(self.tau) for m in range(pairs))
        return tuple(self.base ** (math.asinh(x) / self.tau - 1) for x in above)
