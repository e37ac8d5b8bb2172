"""Integer positions: the position itself, added to the token embedding.

    x_p ← x_p + α (p + s) u          u = direction, s = start: 0 or 1

The simplest code, with known defects. It is unbounded, so it dominates the token embeddings as p grows. LayerNorm
(GPT-2, BERT) subtracts the textbooks' u = (1, …, 1) again before attention. And bfloat16 represents integers exactly
only up to 256.

Kazemnejad 2019, "Transformer Architecture: The Positional Encoding", kazemnejad.com, and many textbooks. Nothing is
learned unless ``direction="learned"``; for models trained with it.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.absolute.direction import Along, Direction
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.registry import register_scheme


@register_scheme(
    "integer", aliases=("int",), paper="https://kazemnejad.com/blog/transformer_architecture_positional_encoding/"
)
class Integer(Scheme):
    """``alpha`` times the position, along one ``direction``: all ones, random signs, or learned."""

    formula = r"""
    x_p &\leftarrow x_p + \alpha \, (p + s) \, u \\
    u &= \mathtt{direction}, \quad s = \mathtt{start} \in \{0, 1\}
    """

    def __init__(
        self, geometry: Geometry, *, alpha: float = 1.0, start: Literal[0, 1] = 0, direction: Direction = "ones"
    ) -> None:
        super().__init__(geometry)
        refuse_zero(alpha)
        self.alpha, self.start = alpha, start
        self.along = Along(direction, geometry.code_width)

    def reset_parameters(self) -> None:
        """Redraw a learned direction."""
        self.along.reset_parameters()

    def embed(self, positions: Tensor) -> Tensor:
        """Codes of ``positions [batch or 1, query]``, ``[batch or 1, query, width]``, float32."""
        return self.along(self.alpha * (positions + self.start).float())

    @property
    def may_vanish(self) -> bool:
        """Whether the code is constant over channels, which LayerNorm removes."""
        return self.along.constant


def refuse_zero(alpha: float) -> None:
    """Refuse the factor that makes every code zero.

    Raises:
        OptionOutOfRange: ``alpha`` is 0.
    """
    if alpha == 0:
        raise OptionOutOfRange('alpha must not be 0, which adds nothing. For no positions at all use scheme="none".')
