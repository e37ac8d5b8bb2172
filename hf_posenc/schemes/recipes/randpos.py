"""Randomised positions: sorted random positions, drawn from a range far longer than the sequence.

    p_0 < p_1 < … < p_{L−1}          drawn without replacement from {0 … L' − 1}

Training covers every distance up to L', and the model learns from order instead of distance. The released code draws in
evaluation, too; ``test="even"`` spaces the tokens evenly there, p_i = ⌊i (L' − 1) / (L − 1)⌋. Either way a token's
position depends on the whole sequence, which can then not be continued from a cache: generate with
``use_cache=False``. L' is the target length, and on a model without a position table at least four times the trained
length. Nothing is learned.

Ruoss et al. 2023, "Randomized Positional Encodings Boost Length Generalization of Transformers", arXiv:2305.16843,
section 3; the released code.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hf_posenc.core.context import check_table_rows
from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import NotTraceable
from hf_posenc.schemes.absolute.text_length import text_lengths
from hf_posenc.schemes.recipes.recipe import Recipe, longest_text
from hf_posenc.schemes.registry import register_scheme

SPREAD = 4  # the paper's longest training sequences are a quarter of its positions, and less


@register_scheme("randpos", aliases=("noisy_positions",), paper="2305.16843")
class RandPos(Recipe):
    """Recipe for training: sorted random positions in a far longer range; in evaluation random again, or even."""

    formula = r"p_0 < p_1 < \dots < p_{L-1} \quad \text{drawn without replacement from } \{0, \dots, L' - 1\}"

    def __init__(self, geometry: Geometry, *, test: Literal["random", "even"] = "random") -> None:
        super().__init__(geometry)
        self.test = test
        trained, target = geometry.trained_length, geometry.target_length
        # A position table is limited to its rows; a function of position has the range of the paper.
        self.positions = target if geometry.table is not None else max(target, SPREAD * trained)

    def reposition(self, positions: Tensor, *, training: bool) -> Tensor:
        """New positions, ``[batch or 1, query]``, strictly increasing within a sequence.

        Raises:
            PositionOutOfTable: a sequence is longer than the range of positions.
        """
        check_table_rows(positions, self.longest, self.record.name)
        if training or self.test == "random":
            return self.drawn(longest_text(positions)).gather(-1, positions)
        steps = (text_lengths(positions) - 1).clamp(min=1)
        return positions * (self.longest - 1) // steps

    def drawn(self, lengths: Tensor) -> Tensor:
        """Sorted random positions, as many as ``lengths [rows, 1]`` says for each row, padded with L', ``[rows, …]``.

        Raises:
            NotTraceable: an exported program cannot draw new positions for every text.
        """
        if torch.compiler.is_exporting():
            raise NotTraceable(
                f"Scheme {self.shown_name!r} draws new positions for every text, which an exported program cannot. "
                "Patch with test='even' and export in evaluation mode (model.eval())."
            )
        widest = int(lengths.max())
        drawn = torch.rand(len(lengths), self.longest, device=lengths.device).topk(widest).indices
        is_padding = torch.arange(widest, device=lengths.device) >= lengths
        return drawn.masked_fill(is_padding, self.longest).sort(-1).values

    @property
    def needs_whole_text(self) -> bool:
        """Always: positions depend on the number of tokens."""
        return True

    @property
    def randomises(self) -> bool:
        """Whether evaluation draws random positions as well."""
        return self.test == "random"

    @property
    def unchanged_below(self) -> int:
        """0: all positions change."""
        return 0

    @property
    def longest(self) -> int:
        """The number of positions, because each token needs its own."""
        return self.positions
