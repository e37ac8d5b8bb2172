"""Terms of a scheme in attention, as values: the engine reads these and never sees a scheme.

    score[i, j] = logit_scale · row_scale[i] · (query_scale[i] · q_i · k_j · scaling + Σ bias[i, j])   of visible pairs
    o_i         = Σ_j softmax_j([score[i, ·], sink])_j v_j + value bias

Composition is arithmetic on these values (`Terms.merge`); `Terms()` is its neutral element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import (
    EVERYTHING,
    ONE_REGION,
    Band,
    Region,
)
from hf_posenc.errors import CannotCombine


@dataclass(frozen=True)
class KeyBias:
    """A bias that depends on the key alone, up to a constant of the row: causal ALiBi.

    Counted from one place it grows with the text, and would take the digits of the scores with it: the engine counts it
    anew from the rows it meets. Key i must stand where query i does.

    Attributes:
        values: ``[batch or 1, heads, key]``, in float64 where the device has that.
        slopes: ``[heads]`` where the bias is −slope · (query − key) and nothing else; None where it is not linear.
    """

    values: Tensor
    slopes: Tensor | None = None


@dataclass(frozen=True)
class ToeplitzBias:
    """A bias of the distance (query − key) alone: T5, symmetric ALiBi, every table and every function of it.

    Attributes:
        of_distance: maps integer distances of any shape ``[…]`` to ``[heads, …]``, float32, with autograd.
        slopes: ``[heads]`` where the bias is −slope times the distance, of either sign, and nothing else; else None.
    """

    of_distance: Callable[[Tensor], Tensor]
    slopes: Tensor | None = None


@dataclass(frozen=True)
class Block:
    """Some query rows of a call against all its keys, as biases of their content see them.

    Attributes:
        query: ``[batch, heads, n, head_dim]``, float32, rotated and scaled.
        key: ``[batch, kv_heads, key, head_dim]``, float32.
        scores: q · k · scaling, ``[batch, heads, n, key]``; empty where all biases say that they do not read it.
        scaling: factor of q · k.
        rows: which query rows of the call these are.
        query_positions: where they stand in their region, ``[batch or 1, n]``.
        key_positions: likewise, ``[batch or 1, key]``.
        seen: who sees whom, padding, packing and causality included, bool, broadcasts to ``[batch, 1, n, key]``.
    """

    query: Tensor
    key: Tensor
    scores: Tensor
    scaling: float
    rows: slice
    query_positions: Tensor
    key_positions: Tensor
    seen: Tensor

    @property
    def distance(self) -> Tensor:
        """Query position minus key position, ``[batch or 1, n, key]``."""
        return self.query_positions[:, :, None] - self.key_positions[:, None, :]


@dataclass(frozen=True)
class BlockBias:
    """A bias that needs the queries and keys themselves, or more of a pair than its distance.

    Attributes:
        of_block: a `SchemeBlock` to ``[batch, heads, n, key]``, float32; called for a block of n queries at a time.
        reads_scores: whether it reads `SchemeBlock.scores`, or what it returns is kept by somebody. A bias that says
            no to both gets no scores where the engine can do without, and the engine writes into its result.
    """

    of_block: Callable[[Block], Tensor]
    reads_scores: bool = True


Bias = KeyBias | ToeplitzBias | BlockBias


@dataclass(frozen=True)
class ValueBias:
    """What position adds to the mixed values: Shaw's second table.

    Attributes:
        of_weights: attention weights ``[batch, heads, n, key]`` and their `SchemeBlock` to ``[batch, heads, n,
            head_dim]``.
    """

    of_weights: Callable[[Tensor, Block], Tensor]


@dataclass(frozen=True)
class RowRotation:
    """A rotation that differs by query row; keys are cached raw and rotated as each row reads them.

    Attributes:
        length_of: position of a query ``[…]`` to the length whose rotation its row uses ``[…]``, integers.
        rotation_of: that length to the rotation.
        frequencies_of: such lengths ``[…]`` to the frequencies of that rotation ``[…, pairs]``, float64, for graphs,
            which have no numbers; None where there is no graph of it.
    """

    length_of: Callable[[Tensor], Tensor]
    rotation_of: Callable[[int], Rotation]
    frequencies_of: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Terms:
    """Scheme → engine: everything of one attention call that is position's."""

    bias: tuple[Bias, ...] = ()
    values: tuple[ValueBias, ...] = ()
    query_scale: Tensor | None = None  # [batch or 1, query]
    row_scale: Tensor | None = None  # [batch or 1, heads or 1, query]
    logit_scale: float = 1.0
    regions: tuple[Region, ...] = ONE_REGION
    visible: Band = EVERYTHING
    rows: RowRotation | None = None
    sink: Tensor | None = None  # [heads]

    @property
    def split(self) -> bool:
        """Whether there are several regions, or pairs outside the only one."""
        return len(self.regions) > 1 or self.regions[0].band != EVERYTHING

    def only(self, *names: str) -> bool:
        """Whether all terms but these are neutral. The scales of queries and of all logits are every route's."""
        return (
            (len(self.bias) == 0 or "bias" in names)  # dynamo cannot negate a tuple
            and (len(self.values) == 0 or "values" in names)
            and (self.row_scale is None or "row_scale" in names)
            and ("regions" in names or not self.split)
            and ("visible" in names or self.visible == EVERYTHING)
            and (self.rows is None or "rows" in names)
            and (self.sink is None or "sink" in names)
        )

    @property
    def plain(self) -> bool:
        """Whether the host's own attention function can carry them: scales alone, which multiply the queries."""
        return self.only("row_scale")

    def merge(self, other: Terms) -> Terms:
        """Both at once: biases add, scales multiply, visibility intersects, the rest comes from one side.

        Raises:
            CannotCombine: both sides bring regions, a row rotation, or a sink.
        """
        self._refuse("remap positions", self.split and other.split)
        self._refuse("rotate by row", self.rows is not None and other.rows is not None)
        self._refuse("bring a sink", self.sink is not None and other.sink is not None)
        return Terms(
            bias=self.bias + other.bias,
            values=self.values + other.values,
            query_scale=_product(self.query_scale, other.query_scale),
            row_scale=_product(self.row_scale, other.row_scale),
            logit_scale=self.logit_scale * other.logit_scale,
            regions=self.regions if self.split else other.regions,
            visible=self.visible & other.visible,
            rows=self.rows or other.rows,
            sink=other.sink if self.sink is None else self.sink,
        )

    @staticmethod
    def _refuse(what: str, both: bool) -> None:
        if both:
            raise CannotCombine(f"Two schemes of this composition {what}. Keep one of them.")


def _product(one: Tensor | None, two: Tensor | None) -> Tensor | None:
    if one is None or two is None:
        return two if one is None else one
    return one * two
