"""Sandwich: the inner product of sinusoidal position codes as an attention bias.

    score[h, i, j] = q_i · k_j / √d + ρ_h Σ_{m < d̄/2} cos(ω_m (i − j))        ρ_h = H / (8 (h + 1)), ω_m = base^(−2m/d̄)

The bias is the inner product of two sinusoidal codes of d̄ channels, without their products with content, times a
factor per head as in ALiBi. It falls roughly like the logarithm of the distance, and is symmetric in it.

Chi, Fan, Rudnicky, Ramadge 2022, arXiv:2212.10356, section 5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry, geometric
from hf_posenc.core.terms import ToeplitzBias
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.distances import by_head, exact, per_distance
from hf_posenc.schemes.options import Base, PositiveInt
from hf_posenc.schemes.registry import register_scheme


@register_scheme("sandwich", paper="2212.10356")
class Sandwich(Scheme):
    """Inner products of sinusoidal codes of ``d_bar`` channels as a bias. No parameters; defined at every length."""

    formula = r"""
    \mathrm{score}_{hij} &= \frac{q_i \cdot k_j}{\sqrt d} + \rho_h \sum_{m < \bar d / 2} \cos(\omega_m (i - j)) \\
    \rho_h &= \frac{H}{8 (h + 1)}, \quad \omega_m = \mathrm{base}^{-2m/\bar d}
    """

    def __init__(self, geometry: Geometry, *, d_bar: PositiveInt = 128, base: Base = 10_000.0) -> None:
        super().__init__(geometry)
        if d_bar % 2:
            raise OptionOutOfRange(f"d_bar must be even, got {d_bar}: every frequency has a sine and a cosine.")
        self.frequencies = geometric(base, d_bar)
        self.factors = tuple(geometry.heads / (8 * (h + 1)) for h in range(geometry.heads))

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        """Bias of any distance."""
        factors, reach = ctx.constant(self.factors), ctx.key_positions.shape[1]

        def at_known(distance: Tensor) -> Tensor:
            # Without parameters, all layers share one table.
            distances = torch.arange(reach + 1, device=ctx.device)
            sums = ctx.once(("sandwich", self.frequencies, reach), lambda: self.sum_of_cosines(distances))
            return by_head(factors, sums[distance.abs()])

        def at_any(distance: Tensor) -> Tensor:
            return per_distance(lambda d: by_head(factors, self.sum_of_cosines(d)), distance)

        return ToeplitzBias(at_known if ctx.steady else at_any)

    def sum_of_cosines(self, distance: Tensor) -> Tensor:
        """Σ_m cos(ω_m distance), float32 from float64 angles; one frequency at a time, to bound memory."""
        absolute = exact(distance)
        total = torch.zeros_like(absolute)
        for frequency in self.frequencies:
            total += (absolute * frequency).cos()
        return total.float()
