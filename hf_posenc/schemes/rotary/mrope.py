"""M-RoPE: time, height and width share the pairs of one RoPE; on text it equals RoPE.

    pair m is rotated by ω_m · (t, h or w),  ω_m = θ^(−2m / d)          section = pairs of t, h, w, together d / 2

Sections follow one another (Qwen2-VL: [16, 24, 24]), which gives time the fast pairs and width the slow ones, or are
``interleaved`` (Qwen3-VL: [24, 20, 20]): t h w t h w …, then t to the end. A text token has t = h = w = p.

Wang et al. 2024, "Qwen2-VL", arXiv:2409.12191, section 2.1; Qwen3-VL, arXiv:2511.21631.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hf_posenc.core.geometry import Geometry, Layout, Rotation
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.options import Base, NotNegativeInt
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.rope_nd import checked_coordinates
from hf_posenc.schemes.rotary.rotary import Rotary

AXES = 3


@register_scheme("mrope", aliases=("m-rope",), paper="2409.12191", zero_shot=True)
class MRoPE(Rotary):
    """RoPE whose pairs encode time, height or width, given as ``position_ids [3, batch, token]``. On text it is RoPE.

    By default the sections are the model's own. A model without sections gets those of Qwen2-VL, or of Qwen3-VL if
    ``interleaved``, in proportion to its head dimension.
    """

    formula = r"""
    \text{angle of pair } m &= \omega_m \cdot (t, \, h \text{ or } w), \quad \omega_m = \theta^{-2m/d} \\
    \mathtt{section} &= \text{pairs of $t$, $h$, $w$, together $d/2$}
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        section: Sequence[NotNegativeInt] | None = None,
        interleaved: bool = False,
        base: Base | None = None,
        layout: Layout | None = None,
    ) -> None:
        super().__init__(geometry, base=base, layout=layout)
        own = None if geometry.rotary is None else geometry.rotary.axes
        if own is not None and section is None:
            section = tuple(own.count(axis) for axis in range(AXES))
            interleaved = interleaved or own != pair_axes(section, interleaved=False)
        pairs = self.dims // 2
        across = pairs * (5 if interleaved else 6) // 16
        self.section = (pairs - 2 * across, across, across) if section is None else tuple(section)
        self.interleaved = interleaved
        if len(self.section) != AXES or sum(self.section) != pairs:
            raise OptionOutOfRange(
                f"section must be {AXES} numbers that add up to {pairs}, the rotated pairs of this model, "
                f"got {list(self.section)}. By default it would be {[pairs - 2 * across, across, across]}."
            )
        if interleaved and [self.axes().count(axis) for axis in range(AXES)] != list(self.section):
            raise OptionOutOfRange(
                f"An interleaved section must leave every third pair or more to time, got {list(self.section)}, whose "
                "height and width would run past the last pair. Qwen3-VL has [24, 20, 20]."
            )

    def rotation(self) -> Rotation:
        return Rotation(self.frequencies(), self.layout, axes=self.axes())

    def axes(self) -> tuple[int, ...]:
        """Coordinate that rotates each pair: 0 for time, 1 for height, 2 for width."""
        return pair_axes(self.section, self.interleaved)

    def coordinates(self, positions: Tensor, given: Tensor | None) -> Tensor:
        """The caller's coordinates; for text, the position three times.

        transformers' ``model.generate`` passes four axes. The first is the index of the token, and is dropped.
        """
        if given is None:
            return positions[..., None].expand(*positions.shape, AXES)
        return checked_coordinates(given[..., 1:] if given.shape[-1] == AXES + 1 else given, AXES, "mrope")


def pair_axes(section: Sequence[int], interleaved: bool) -> tuple[int, ...]:
    """Coordinate that rotates each pair, for consecutive or ``interleaved`` sections."""
    if not interleaved:
        return tuple(axis for axis, count in enumerate(section) for _ in range(count))
    return tuple(m % AXES if m // AXES < section[m % AXES] else 0 for m in range(sum(section)))
