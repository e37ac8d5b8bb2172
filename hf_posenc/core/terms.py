"""Terms of a scheme in attention, as values: the interface between schemes and the attention engine.

    score[i, j] = logit_scale · row_scale[i] · (query_scale[i] · q_i · k_j · scaling + Σ bias[i, j])   of visible pairs
    o_i         = Σ_j softmax_j([score[i, ·], sink])_j v_j + value bias

Composition is arithmetic on these values (`Terms.merge`); `Terms()` is its neutral element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import EVERYTHING, ONE_REGION, Band, Region
from hf_posenc.errors import CannotCombine


@dataclass(frozen=True)
class KeyBias:
    """A bias that depends on the key alone, up to a constant per query: causal ALiBi.

    Relative to a fixed position it grows with the sequence length and costs the scores precision: the engine subtracts
    its value at the queries of each block. Key i must have the position of query i.

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
    """A block of queries of a call with all its keys: the arguments of content-dependent biases.

    Attributes:
        query: ``[batch, heads, n, head_dim]``, float32, rotated and scaled.
        key: ``[batch, kv_heads, key, head_dim]``, float32.
        scores: q · k · scaling, ``[batch, heads, n, key]``; empty where no bias reads it (`BlockBias.reads_scores`).
        scaling: factor of q · k.
        rows: which queries of the call these are.
        query_positions: their positions in the region, ``[batch or 1, n]``.
        key_positions: likewise, ``[batch or 1, key]``.
        seen: which pairs are visible, with padding, packing and causality, bool, broadcasts to ``[batch, 1, n, key]``.
        steady: whether the positions of queries and of keys run in steps of one.
    """

    query: Tensor
    key: Tensor
    scores: Tensor
    scaling: float
    rows: slice
    query_positions: Tensor
    key_positions: Tensor
    seen: Tensor
    steady: bool = False

    def in_float32(self) -> Block:
        """The block with queries, keys and scores in float32, as biases of content expect them."""
        return replace(self, query=self.query.float(), key=self.key.float(), scores=self.scores.float())

    @property
    def distance(self) -> Tensor:
        """Query position minus key position, ``[batch or 1, n, key]``."""
        return self.query_positions[:, :, None] - self.key_positions[:, None, :]

    @property
    def distances(self) -> Tensor:
        """The distances that occur in a block whose positions run in steps of one, the greatest first."""
        n, keys = self.query.shape[2], self.key.shape[2]
        first = self.query_positions[0, 0] - self.key_positions[0, 0]
        return first + torch.arange(n - 1, -keys, -1, device=self.query.device)

    def of_distance(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """A function of distances, ``[…]`` to ``[heads, …]``, at every pair, ``[batch or 1, heads, n, key]``.

        Where positions run in steps of one it is evaluated once for every distance, and nothing has to be read from a
        GPU for that.
        """
        if not self.steady:
            return function(self.distance).transpose(0, 1)
        return self.at_pairs(function(self.distances))[None]

    def at_pairs(self, values: Tensor) -> Tensor:
        """Values of `distances` ``[…, m]`` at every pair, ``[…, n, key]``: a window of one row's keys slides along."""
        backwards = torch.arange(self.query.shape[2] - 1, -1, -1, device=values.device)
        # Of rows that overlap, a flip would be laid out key by key, which takes 30 times as long to read.
        return values.unfold(-1, self.key.shape[2], 1).index_select(-2, backwards)


@dataclass(frozen=True)
class BlockBias:
    """A bias that depends on queries and keys, or on more of a pair than its distance.

    Attributes:
        of_block: a `Block` to ``[batch, heads, n, key]``, float32; called for a block of n queries at a time.
        reads_scores: whether it reads `Block.scores`, or what it returns is stored elsewhere. Otherwise the
            engine may leave out the scores, and overwrites the result in place.
        shifted: the same bias with the part that is linear in the keys left to q · k, where there is such a part.
    """

    of_block: Callable[[Block], Tensor]
    reads_scores: bool = True
    shifted: ShiftedQuery | None = None


@dataclass(frozen=True)
class ShiftedQuery:
    """A bias u · k_j · scaling + rest, as (q_i + u) · k_j in place of q_i · k_j: one pass over the keys less.

    Attributes:
        by: u, ``[heads, head_dim]``, float32.
        rest: what is left of `BlockBias.of_block`, under its terms; `Block.query` is without u.
    """

    by: Tensor
    rest: Callable[[Block], Tensor]


Bias = KeyBias | ToeplitzBias | BlockBias


@dataclass(frozen=True)
class ValueBias:
    """A positional term of the mixed values: Shaw's second table.

    Attributes:
        of_weights: attention weights ``[batch, heads, n, key]`` and their `Block` to ``[batch, heads, n,
            head_dim]``.
    """

    of_weights: Callable[[Tensor, Block], Tensor]


@dataclass(frozen=True)
class RowRotation:
    """A rotation that depends on the query; keys are cached raw and rotated for each query.

    Attributes:
        length_of: position of a query ``[…]`` to the length whose rotation it uses ``[…]``, integers.
        rotation_of: that length to the rotation.
        frequencies_of: such lengths ``[…]`` to the frequencies of that rotation ``[…, pairs]``, float64, for traced
            graphs, where lengths have no values; None where that is not supported.
    """

    length_of: Callable[[Tensor], Tensor]
    rotation_of: Callable[[int], Rotation]
    frequencies_of: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Terms:
    """Scheme → engine: all positional terms of one attention call."""

    bias: tuple[Bias, ...] = ()
    values: tuple[ValueBias, ...] = ()
    query_scale: Tensor | None = None  # [batch or 1, query]
    row_scale: Tensor | None = None  # [batch or 1, heads or 1, query]
    logit_scale: float = 1.0
    regions: tuple[Region, ...] = field(default_factory=lambda: ONE_REGION)
    visible: Band = field(default_factory=lambda: EVERYTHING)
    row_rotation: RowRotation | None = None
    sink: Tensor | None = None  # [heads]

    @property
    def split(self) -> bool:
        """Whether there are several regions, or pairs outside the only one."""
        return len(self.regions) > 1 or self.regions[0].band != EVERYTHING

    def only(self, *names: str) -> bool:
        """Whether all terms but these are neutral. Every route supports the scales of queries and of all logits."""
        return (
            (len(self.bias) == 0 or "bias" in names)  # dynamo cannot negate a tuple
            and (len(self.values) == 0 or "values" in names)
            and (self.row_scale is None or "row_scale" in names)
            and ("regions" in names or not self.split)
            and ("visible" in names or self.visible == EVERYTHING)
            and (self.row_rotation is None or "row_rotation" in names)
            and (self.sink is None or "sink" in names)
        )

    @property
    def scales_only(self) -> bool:
        """Whether the model's own attention function can compute them: scales alone, which multiply the queries."""
        return self.only("row_scale") and not self.regions[0].differs_by_head

    def merge(self, other: Terms) -> Terms:
        """Combine both: biases add, scales multiply, visible bands intersect, the rest comes from one side.

        Raises:
            CannotCombine: both sides have regions, a row rotation, or a sink.
        """
        self._refuse("remap positions", self.split and other.split)
        self._refuse("rotate by row", self.row_rotation is not None and other.row_rotation is not None)
        self._refuse("bring a sink", self.sink is not None and other.sink is not None)
        return Terms(
            bias=self.bias + other.bias,
            values=self.values + other.values,
            query_scale=_product(self.query_scale, other.query_scale),
            row_scale=_product(self.row_scale, other.row_scale),
            logit_scale=self.logit_scale * other.logit_scale,
            regions=other.regions if self.regions == ONE_REGION else self.regions,  # one may differ by head
            visible=self.visible & other.visible,
            row_rotation=self.row_rotation or other.row_rotation,
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
