"""Normalised positions: the position divided by the sequence length, between 0 and 1, added to the token embedding.

    x_p ← x_p + α p / (N − 1) u          u = direction, N = sequence length, or a fixed number

The code is bounded, but a step is 1/2 in a sequence of three tokens and 1/3 in one of four. Each new token changes the
codes of all earlier ones, so a sequence cannot be continued from a cache: generate with ``use_cache=False``, or fix
``n``. With a fixed ``n``, codes of positions from n on are greater than 1.

Kazemnejad 2019, "Transformer Architecture: The Positional Encoding", kazemnejad.com, and many textbooks. Nothing is
learned unless ``direction="learned"``; for models trained with it.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from hf_posenc.core.geometry import Geometry
from hf_posenc.schemes.absolute.integer import Along, Direction, refuse_zero
from hf_posenc.schemes.absolute.text_length import text_lengths
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import AtLeastTwo
from hf_posenc.schemes.registry import register_scheme


@register_scheme(
    "norm01",
    aliases=("unit_interval",),
    paper="https://kazemnejad.com/blog/transformer_architecture_positional_encoding/",
)
class Norm01(Scheme):
    """The position relative to the sequence length, times ``alpha``, along one ``direction``.

    ``n`` is the length of each sequence (``"current"``) or a fixed number.
    """

    formula = r"""
    x_p &\leftarrow x_p + \alpha \, \frac{p}{N - 1} \, u \\
    u &= \mathtt{direction}, \quad N = \text{sequence length, or a fixed number}
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        n: Literal["current"] | AtLeastTwo = "current",
        alpha: float = 1.0,
        direction: Direction = "ones",
    ) -> None:
        super().__init__(geometry)
        refuse_zero(alpha)
        self.alpha = alpha
        self.fixed = None if n == "current" else n
        self.along = Along(direction, geometry.code_width)

    def reset_parameters(self) -> None:
        """Redraw a learned direction."""
        self.along.reset_parameters()

    def embed(self, positions: Tensor) -> Tensor:
        """Codes of ``positions [batch or 1, query]``, ``[batch or 1, query, width]``, float32."""
        steps = (text_lengths(positions) - 1).clamp(min=1) if self.fixed is None else self.fixed - 1
        return self.along(self.alpha * (positions / steps).float())

    @property
    def needs_whole_text(self) -> bool:
        """Whether codes depend on the sequence length: always, unless ``n`` is fixed."""
        return self.fixed is None

    @property
    def may_vanish(self) -> bool:
        """Whether the code is constant over channels, which LayerNorm removes."""
        return self.along.constant
