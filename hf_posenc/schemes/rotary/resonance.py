"""Resonance RoPE: round wavelengths to whole tokens, so that a pair turns through the same angles again and again.

    ω'_m = 2π / round(2π / ω_m)         ω_m: with any scaling; a frequency of 0 stays 0

Pairs that complete a turn within the trained length then meet no new angle beyond it. The scheme rounds the wavelengths
of a composed scaling (``"yarn+resonance"``), or those of the model. Slow pairs, with long wavelengths, hardly change.
The authors repeat tables of angles instead, which is equal, because a rotation by whole turns has no effect.

Wang, Kobyzev, Lu, Rezagholizadeh, Liu 2024, "Resonance RoPE: Improving Context Length Generalization of Large Language
Models", arXiv:2403.00071, section 4; github.com/sheryc/resonance_rope.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from hf_posenc.core.geometry import Rotation
from hf_posenc.errors import CannotCombine
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.registry import register_scheme


@register_scheme("resonance", aliases=("resonance_rope",), paper="2403.00071", zero_shot=True)
class Resonance(Scheme):
    """Wavelengths of the model's rotation, or of a composed scaling, rounded to whole tokens. Zero-shot."""

    formula = r"\omega'_m = \frac{2\pi}{\mathrm{round}(2\pi / \omega_m)}"

    replaces_host = False
    needs_rotation: ClassVar[bool] = True

    def retune(self, rotation: Rotation) -> Rotation:
        """The rotation with wavelengths of whole tokens."""
        return replace(rotation, frequencies=tuple(map(with_whole_wavelength, fixed_frequencies(rotation, self))))


def with_whole_wavelength(frequency: float) -> float:
    """The frequency whose wavelength is a whole number of tokens, at least 1."""
    return 2 * math.pi / max(round(2 * math.pi / frequency), 1) if frequency else 0.0


def fixed_frequencies(rotation: Rotation, scheme: Scheme) -> tuple[float, ...]:
    """Radians per token of each pair, for a scheme that changes them.

    Raises:
        CannotCombine: the frequencies are trained.
    """
    if not isinstance(rotation.frequencies, tuple):
        name = scheme.record.name
        raise CannotCombine(f"{name!r} changes fixed frequencies, not those of learn_freq. Leave one of them out.")
    return rotation.frequencies
