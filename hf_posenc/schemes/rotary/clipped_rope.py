"""Clipped RoPE (the authors' CoPE): fade out the slowest pairs, whose turns training never completed.

    ω'_m = ½ (1 + cos(π t / (n − 1))) ω_m     t = m − (d / 2 − n) ≥ 0: index among the n slowest pairs
           0                                  ``clip="hard"``

ω_m are the frequencies of the model, or of a composed scaling (``"yarn+clipped_rope"``). The first of the n pairs keeps
its frequency, and the last gets frequency 0; so n = 1 has an effect only with ``clip="hard"``. The authors fade 20 of
64 pairs of Llama 3; the default is that share of any head. They argue that a hard edge lets attention scores oscillate
with the distance. The name `cope` belongs to another scheme.

Li, Ren, Yuille, Wang 2026, "CoPE: Clipped RoPE as A Scalable Free Lunch for Long Context LLMs", arXiv:2602.05258;
github.com/hrlics/CoPE.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

from hf_posenc.core.geometry import Geometry, Rotation
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import PositiveInt
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.resonance import fixed_frequencies

SHARE = 20 / 64


@register_scheme("clipped_rope", aliases=("clip_rope",), paper="2602.05258")
class ClippedRoPE(Scheme):
    """The slowest pairs of a rotation faded by half a cosine, or cut. Continue training after the change.

    ``pairs`` is their number, by default 20 of 64; ``clip="hard"`` sets all their frequencies to 0.
    """

    formula = r"""
    \omega'_m &= \tfrac{1}{2} \left( 1 + \cos \frac{\pi t}{n - 1} \right) \omega_m \\
    t &= m - (d/2 - n) \ge 0, \quad n = \mathtt{pairs}
    """

    replaces_host = False
    needs_rotation: ClassVar[bool] = True

    def __init__(
        self, geometry: Geometry, *, pairs: PositiveInt | None = None, clip: Literal["soft", "hard"] = "soft"
    ) -> None:
        super().__init__(geometry)
        self.pairs, self.clip = pairs, clip

    def retune(self, rotation: Rotation) -> Rotation:
        """The rotation with the frequencies of its last pairs faded."""
        frequencies = fixed_frequencies(rotation, self)
        n = max(2, round(SHARE * len(frequencies))) if self.pairs is None else self.pairs
        unchanged = len(frequencies) - n
        if unchanged < 0:
            raise OptionOutOfRange(
                f"pairs is {n}, but this rotation has {len(frequencies)}. Use at most that many, or the scheme 'none'."
            )
        faded = (w * self.remaining(m - unchanged, n) for m, w in enumerate(frequencies))
        return replace(rotation, frequencies=tuple(faded))

    def remaining(self, index: int, n: int) -> float:
        """Factor of the frequency of a pair with an index among the n slowest; faster pairs have a negative index."""
        if index < 0:
            return 1.0
        if self.clip == "hard" or index == n - 1 > 0:  # exactly 0; the cosine would be rounded
            return 0.0
        return (1 + math.cos(math.pi * index / max(n - 1, 1))) / 2
