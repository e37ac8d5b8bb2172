"""Randomised positions: the tokens of a text stand at random places of a far longer one, in their order.

    p_0 < p_1 < … < p_{L−1}          drawn without replacement from {0 … L' − 1}

Training meets every distance up to L', and learns from order what it used to learn from distance. The released code
draws at evaluation, too; ``test="even"`` spaces the tokens evenly there, p_i = ⌊i (L' − 1) / (L − 1)⌋. Either way a
token's place depends on the whole text, which can then not be continued from a cache: generate with
``use_cache=False``. L' is the target length, and on a host without a table at least four times the trained length.
Nothing is learned.

Ruoss et al. 2023, "Randomized Positional Encodings Boost Length Generalization of Transformers", arXiv:2305.16843,
section 3; the released code.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hf_posenc.core.context import check_positions
from hf_posenc.core.geometry import Geometry
from hf_posenc.schemes.absolute.text_length import text_lengths
from hf_posenc.schemes.recipes.recipe import Recipe, longest_text
from hf_posenc.schemes.registry import register_scheme

SPREAD = 4  # the paper's longest training texts are a quarter of its places, and less


@register_scheme("randpos", aliases=("noisy_positions",), paper="2305.16843")
class RandPos(Recipe):
    """Recipe for training: sorted random places in a far longer text; at evaluation random again, or even."""

    def __init__(self, geometry: Geometry, *, test: Literal["random", "even"] = "random") -> None:
        super().__init__(geometry)
        self.test = test
        trained, target = geometry.trained_length, geometry.target_length
        # A host's table has no more places; a function of position has as many as the paper asks for.
        self.places = target if geometry.table is not None else max(target, SPREAD * trained)

    def reposition(self, positions: Tensor, *, training: bool) -> Tensor:
        """New places, ``[batch or 1, query]``, strictly increasing within a text.

        Raises:
            PositionOutOfTable: a text is longer than the target length.
        """
        check_positions(positions, self.longest, self.record.name)
        if training or self.test == "random":
            return self.drawn(longest_text(positions)).gather(-1, positions)
        steps = (text_lengths(positions) - 1).clamp(min=1)
        return positions * (self.longest - 1) // steps

    def drawn(self, lengths: Tensor) -> Tensor:
        """For each of ``lengths [rows, 1]`` as many sorted places, and behind them L', ``[rows, …]``."""
        widest = int(lengths.max())
        places = torch.rand(len(lengths), self.longest, device=lengths.device).topk(widest).indices
        more = torch.arange(widest, device=lengths.device) >= lengths
        return places.masked_fill(more, self.longest).sort(-1).values

    @property
    def needs_whole_text(self) -> bool:
        """Always: how far apart tokens stand depends on their number."""
        return True

    @property
    def randomises(self) -> bool:
        """Where evaluation draws, too."""
        return self.test == "random"

    @property
    def unchanged_below(self) -> int:
        """Nothing."""
        return 0

    @property
    def longest(self) -> int:
        """The number of places: no two tokens stand at one."""
        return self.places
