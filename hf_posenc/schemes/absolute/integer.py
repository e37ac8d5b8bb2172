"""Integer positions: the number of a token itself, added to its embedding.

    x_p ← x_p + α (p + s) u          u = direction, s = start: 0 or 1

The simplest code there is, and why nobody stays with it: it has no bound, so that it drowns the words as p grows, and
on LayerNorm hosts (GPT-2, BERT) the textbooks' u = (1, …, 1) is subtracted again before anyone reads it. Of
bfloat16's integers only those up to 256 are told apart.

Kazemnejad 2019, "Transformer Architecture: The Positional Encoding", kazemnejad.com, and many a textbook. Nothing is
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

    def __init__(
        self, geometry: Geometry, *, alpha: float = 1.0, start: Literal[0, 1] = 0, direction: Direction = "ones"
    ) -> None:
        super().__init__(geometry)
        refuse_zero(alpha)
        self.alpha, self.start = alpha, start
        self.along = Along(direction, geometry.width)

    def reset_parameters(self) -> None:
        """Draw a learned direction anew."""
        self.along.reset_parameters()

    def embed(self, positions: Tensor) -> Tensor:
        """Codes of ``positions [batch or 1, query]``, ``[batch or 1, query, width]``, float32."""
        return self.along(self.alpha * (positions + self.start).float())

    @property
    def may_vanish(self) -> bool:
        """A constant vector, which LayerNorm takes away."""
        return self.along.constant


def refuse_zero(alpha: float) -> None:
    """Refuse the factor that makes every code zero.

    Raises:
        OptionOutOfRange: ``alpha`` is 0.
    """
    if alpha == 0:
        raise OptionOutOfRange('alpha must not be 0, which adds nothing. For no positions at all use scheme="none".')
