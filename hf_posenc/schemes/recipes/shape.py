"""SHAPE and CAPE: random shifts of all positions of a sequence in training, so that only distance is informative.

    SHAPE    p ← p + Δ                    Δ uniform in {0 … max_shift}, by default as far as the target length allows
    CAPE     p ← e^λ (p + Δ + ε_p)        Δ, ε_p, λ uniform within ± max_shift, ± jitter, ± log_scale

The model learns from distance, which the shift leaves unchanged. CAPE also perturbs each distance and scales all of
them; the order is kept, because ε is at most 1/2. Its positions are fractional, so it works with functions of position,
not with tables. Nothing is learned; relative schemes are invariant to the shift.

Kiyono, Kobayashi, Suzuki, Inui 2021, "SHAPE", arXiv:2109.05644, section 3; Likhomanenko, Xu, Synnaeve, Collobert,
Rogozhnikov 2021, "CAPE", arXiv:2106.03143, section 3.
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from hf_posenc.core.geometry import Geometry
from hf_posenc.schemes.options import NotNegative, NotNegativeInt
from hf_posenc.schemes.recipes.recipe import Recipe, longest_text, whole_between
from hf_posenc.schemes.registry import register_scheme

Jitter = Annotated[float, Ge(0), Le(0.5)]


@register_scheme("shape", aliases=("random_shift",), paper="2109.05644")
class SHAPE(Recipe):
    """Recipe for training: all positions of a sequence shifted by one random number. No effect in evaluation."""

    formula = r"""
    p &\leftarrow p + \Delta \\
    &\Delta \sim \mathcal{U} \{0, \dots, \mathtt{max\_shift}\}
    """

    def __init__(self, geometry: Geometry, *, max_shift: NotNegativeInt | None = None) -> None:
        super().__init__(geometry)
        self.max_shift = max_shift

    def reposition(self, positions: Tensor, *, training: bool) -> Tensor:
        if not training:
            return positions
        length = longest_text(positions)
        room = (self.geometry.target_length - length).clamp(min=0)
        furthest = room if self.max_shift is None else torch.full_like(length, self.max_shift)
        return positions + whole_between(0, furthest)


@register_scheme("cape", paper="2106.03143")
class CAPE(Recipe):
    """Recipe for training: positions shifted, jittered and scaled at random. No effect in evaluation."""

    formula = r"""
    p &\leftarrow e^{\lambda} (p + \Delta + \varepsilon_p) \\
    &\Delta \sim \mathcal{U}(\pm \mathtt{max\_shift}), \;
    \varepsilon_p \sim \mathcal{U}(\pm \mathtt{jitter}), \;
    \lambda \sim \mathcal{U}(\pm \mathtt{log\_scale})
    """

    needs_function = True

    def __init__(
        self,
        geometry: Geometry,
        *,
        max_shift: NotNegative = 5.0,
        jitter: Jitter = 0.5,
        log_scale: NotNegative = 0.1,
    ) -> None:
        super().__init__(geometry)
        self.max_shift, self.jitter, self.log_scale = max_shift, jitter, log_scale

    def reposition(self, positions: Tensor, *, training: bool) -> Tensor:
        if not training:
            return positions
        per_row = positions[:, :1]
        shifted = positions + around_zero(per_row, self.max_shift) + around_zero(positions, self.jitter)
        return shifted * around_zero(per_row, self.log_scale).exp()


def around_zero(like: Tensor, largest: float) -> Tensor:
    """Uniform random numbers in ± ``largest``, one for every element of ``like``, float32."""
    return (2 * torch.rand(like.shape, device=like.device) - 1) * largest
