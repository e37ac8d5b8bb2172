"""PoSE: train at the trained length for the target length, by skipping positions between chunks of a sequence.

    p ← p + u_c           for tokens of chunk c = 0 … C − 1, u_0 = 0, u_c uniform in {u_{c−1} … L' − L}

L is the sequence length and L' the target length. With two chunks, the first ends at a uniform position up to the
middle. With C chunks, each boundary is drawn in its own 1/C of the sequence. Within a chunk, distances are true. Across
chunks they reach up to the target length, at the cost of the short sequence. All tokens are kept; the released code
also skips tokens, which the authors found to matter little. Nothing is learned; compose it with a scaling, as in
``"yarn+pose"``.

Zhu, Yang, Wang, Song, Wu, Wei, Li 2023, arXiv:2309.10400, section 3.2; the released code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.core.geometry import Geometry
from hf_posenc.schemes.options import AtLeastTwo
from hf_posenc.schemes.recipes.recipe import Recipe, longest_text, whole_between
from hf_posenc.schemes.registry import register_scheme


@register_scheme("pose", paper="2309.10400")
class PoSE(Recipe):
    """Recipe for training: a sequence in ``chunks`` spread over the target length. No effect in evaluation."""

    formula = r"""
    p &\leftarrow p + u_c \quad \text{for tokens of chunk } c = 0, \dots, C - 1 \\
    u_0 &= 0, \quad u_c \sim \mathcal{U} \{u_{c-1}, \dots, L' - L\}
    """

    def __init__(self, geometry: Geometry, *, chunks: AtLeastTwo = 2) -> None:
        super().__init__(geometry)
        self.chunks = chunks

    def reposition(self, positions: Tensor, *, training: bool) -> Tensor:
        if not training:
            return positions
        length = longest_text(positions)
        room = (self.geometry.target_length - length).clamp(min=0)
        skip, shifted = torch.zeros_like(length), positions
        for cut in range(1, self.chunks):
            first = (cut - 1) * length // self.chunks + 1
            start = whole_between(first, -(-cut * length // self.chunks))  # rounded up
            further = whole_between(skip, room)
            shifted = shifted + (positions >= start) * (further - skip)
            skip = further
        return shifted
