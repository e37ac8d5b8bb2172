"""DPE: Self-Extend with a group size of its own for each band of frequencies.

    Δ'_m = i − j                                           for i − j < W
           ⌊i / G_b⌋ − ⌊j / G_b⌋ + W − ⌊W / G_b⌋            beyond          b = ⌊m B / pairs⌋, the band of pair m

In training, slow pairs never turn far enough for long distances, while fast ones turn many times. So each band gets the
distances at which it works best. Llama 3 8B, trained on 8k, reads 128k with eight bands, W = 1024 and G = 2, 8, 2, 8,
32, 32, 32, 4, fastest first.

The authors find G by testing each band on needles in a haystack; ``hf-posenc compare --tune`` tests some on a text. As
published, a band may keep distances longer than the trained ones. The paper also selects channels for each head by
norms of queries and keys; this is left out, as it is by default in the released code. That code shifts queries by
W − W / G, unrounded in a prompt and rounded in decoding; here both are rounded.

Lu, Zhao, Zhou, An, Wang, Li, Yang, Zhao, Ji, Gui, Zhang, Huang 2025, "Effective Length Extrapolation via
Dimension-Wise Positional Embeddings Manipulation", arXiv:2504.18857; github.com/LuLuLuyi/DPE.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.constants import constant
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.regions import Region
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.options import PositiveInt
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.remap.self_extend import SelfExtend

BANDS = 8
LLAMA_3 = (2, 8, 2, 8, 32, 32, 32, 4)


@register_scheme("dpe", aliases=("dimension_wise",), zero_shot=True, cache="copies", paper="2504.18857")
class DPE(SelfExtend):
    """Self-Extend with a group size for each band of frequencies: ``groups``, fastest first, as many as you like.

    The default is eight bands with Self-Extend's group size, which equals Self-Extend. ``compare --tune`` finds others.
    """

    formula = r"""
    \Delta'_m &= \begin{cases}
    i - j & i - j < W \\
    \lfloor i / G_b \rfloor - \lfloor j / G_b \rfloor + W - \lfloor W / G_b \rfloor & \text{beyond}
    \end{cases} \\
    b &= \lfloor m B / \text{pairs} \rfloor, \quad W = \mathtt{window}, \quad G_1 \dots G_B = \mathtt{groups}
    """

    def __init__(
        self, geometry: Geometry, *, groups: Sequence[PositiveInt] | None = None, window: PositiveInt | None = None
    ) -> None:
        super().__init__(geometry, window=window)
        pairs = geometry.rotary_dim // 2
        self.groups = (self.group,) * min(BANDS, pairs) if groups is None else tuple(groups)
        if not 1 <= len(self.groups) <= pairs:
            raise OptionOutOfRange(
                f"groups has {len(self.groups)} bands, and this model rotates {pairs} pairs. Use 1 to {pairs} bands; "
                f"the paper has {BANDS}."
            )
        self.group = max(self.groups)
        self.shift = self.window - self.window // self.group

    @classmethod
    def comparison_options(cls, *, factor: float, trained_length: int) -> dict[str, Any]:
        """The groups of Llama 3 8B, published for a factor of 16, in proportion."""
        return {"groups": [max(1, round(group * factor / 16)) for group in LLAMA_3]}

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        """Self-Extend's regions with the largest group, for biases; each band rotates far keys by its own group."""
        near, far = Region(self.near), Region(
            self.far, self.shifted, self.grouped,
            query_bands_at=self.shifted_bands, key_bands_at=self.grouped_bands, bands=len(self.groups),
        )  # fmt: skip
        return near, far

    def grouped_bands(self, positions: Tensor) -> Tensor:
        """Group number of a key in each band, ``[…, bands]``."""
        return positions[..., None] // constant(self.groups, torch.long, positions.device)

    def shifted_bands(self, positions: Tensor) -> Tensor:
        """Position of the query of such a key in each band, ``[…, bands]``."""
        shifts = tuple(self.window - self.window // group for group in self.groups)
        return self.grouped_bands(positions) + constant(shifts, torch.long, positions.device)
