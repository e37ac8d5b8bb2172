"""What a scheme asks of attention, as values: the engine reads these and never meets a scheme.

    score[i, j] = logit_scale · (query_scale[i] · q_i · k_j · scaling + Σ bias[i, j])        for visible pairs

Composition is arithmetic on these values (`Terms.merge`); `Terms()` is its neutral element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from hf_posenc.errors import CannotCombine
from hf_posenc.geometry import Rotation


@dataclass(frozen=True)
class KeyBias:
    """A bias that depends on the key alone, up to a constant of the row: causal ALiBi.

    Attributes:
        values: ``[batch or 1, heads, key]``, float32.
    """

    values: Tensor


@dataclass(frozen=True)
class ToeplitzBias:
    """A bias of the distance (query − key) alone: T5, symmetric ALiBi, every table and every function of it.

    Attributes:
        of_distance: maps integer distances of any shape ``[…]`` to ``[heads, …]``, float32, with autograd.
    """

    of_distance: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class BlockBias:
    """A bias that needs the queries and keys themselves.

    Attributes:
        of_block: ``(q [batch, heads, n, head_dim], k [batch, kv_heads, key, head_dim], distance [batch or 1, n, key])``
            to ``[batch, heads, n, key]``; called for a block of n queries at a time.
    """

    of_block: Callable[[Tensor, Tensor, Tensor], Tensor]


Bias = KeyBias | ToeplitzBias | BlockBias


@dataclass(frozen=True)
class Band:
    """The pairs whose distance (query − key) lies in ``nearest ≤ distance < farthest``; ``None`` is no bound."""

    nearest: int | None = None
    farthest: int | None = None

    def __and__(self, other: Band) -> Band:
        return Band(_tightest(max, self.nearest, other.nearest), _tightest(min, self.farthest, other.farthest))


EVERYTHING = Band()


@dataclass(frozen=True)
class Region:
    """A set of pairs that see each other at positions of their own.

    Attributes:
        query_positions: where the queries of this call stand, ``[batch or 1, query]``, whole or fractional.
        key_positions: where the same tokens stand as keys, ``[batch or 1, query]``.
        band: the pairs that belong to the region; the bands of a call are disjoint.
    """

    query_positions: Tensor
    key_positions: Tensor
    band: Band = EVERYTHING


@dataclass(frozen=True)
class RowRotation:
    """A rotation that differs by query row; keys are cached raw and rotated as each row reads them.

    Attributes:
        length_of: position of a query ``[…]`` to the length whose rotation its row uses ``[…]``, integers.
        rotation_of: that length to the rotation.
    """

    length_of: Callable[[Tensor], Tensor]
    rotation_of: Callable[[int], Rotation]


@dataclass(frozen=True)
class Terms:
    """Scheme → engine: everything of one attention call that is position's."""

    bias: tuple[Bias, ...] = ()
    query_scale: Tensor | None = None  # [batch or 1, query]
    logit_scale: float = 1.0
    bands: tuple[Band, ...] = field(default=(EVERYTHING,))  # of the regions, in the order of the keys' copies
    visible: Band = EVERYTHING
    rows: RowRotation | None = None

    @property
    def plain(self) -> bool:
        """Whether the host's own attention function can carry them: scales alone, which multiply the queries."""
        return len(self.bias) == 0 and len(self.bands) == 1 and self.visible == EVERYTHING and self.rows is None

    def merge(self, other: Terms) -> Terms:
        """Both at once: biases add, scales multiply, visibility intersects, the rest comes from one side.

        Raises:
            CannotCombine: both sides bring regions, or both a row rotation.
        """
        if len(self.bands) > 1 and len(other.bands) > 1:
            raise CannotCombine("Two schemes of this composition remap positions. Keep one of them.")
        if self.rows is not None and other.rows is not None:
            raise CannotCombine("Two schemes of this composition rotate by row. Keep one of them.")
        return Terms(
            bias=self.bias + other.bias,
            query_scale=_product(self.query_scale, other.query_scale),
            logit_scale=self.logit_scale * other.logit_scale,
            bands=self.bands if len(self.bands) > 1 else other.bands,
            visible=self.visible & other.visible,
            rows=self.rows or other.rows,
        )


def _product(one: Tensor | None, two: Tensor | None) -> Tensor | None:
    if one is None or two is None:
        return two if one is None else one
    return one * two


def _tightest(choose: Callable[[int, int], int], one: int | None, two: int | None) -> int | None:
    if one is None or two is None:
        return two if one is None else one
    return choose(one, two)
