"""Partial rotation: rotate the first channels of each head; the others encode content without position.

    the first d' = fraction · d channels are rotated, ω_m = θ^(−2m / d');  the others are unchanged

d is the number of channels that the model rotates already, or the head dimension if it rotates none; d' is rounded down
to an even number. The frequencies cover their whole range in fewer steps, unlike `proportional`, which keeps the
spacing of a full head and leaves out the slow end.

Wang and Komatsuzaki 2021, GPT-J; Black et al. 2022, "GPT-NeoX-20B", arXiv:2204.06745, section 2.
"""

from __future__ import annotations

from hf_posenc.core.geometry import Geometry, Layout
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.options import Base, Fraction
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.rotary import Rotary


@register_scheme("partial", aliases=("partial_rotary",), paper="2204.06745")
class Partial(Rotary):
    """RoPE on a fraction of the channels that are otherwise rotated. No parameters; for training from scratch."""

    formula = r"""
    d' &= \mathtt{fraction} \cdot d \quad \text{channels, the first, are rotated} \\
    \omega_m &= \theta^{-2m/d'}
    """

    def __init__(
        self, geometry: Geometry, *, fraction: Fraction = 0.5, base: Base | None = None, layout: Layout | None = None
    ) -> None:
        dims = int(geometry.rotary_dim * fraction) // 2 * 2
        if dims == 0:
            raise OptionOutOfRange(
                f"fraction {fraction:g} of {geometry.rotary_dim} channels is not a pair. "
                f"Use at least {2 / geometry.rotary_dim:g}, or the scheme 'none'."
            )
        super().__init__(geometry, base=base, layout=layout, dims=dims)
