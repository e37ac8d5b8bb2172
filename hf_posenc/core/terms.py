"""Terms of a scheme in attention, as values: the interface between schemes and the attention engine.

    score[i, j] = logit_scale · row_scale[i] · (query_scale[i] · q_i · k_j · scaling + Σ bias[i, j])   of visible pairs
    o_i         = Σ_j softmax_j([score[i, ·], sink])_j v_j + value bias

Composition is arithmetic on these values (`Terms.merge`); `Terms()` is its neutral element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import mul

import torch
from torch import Tensor

from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import EVERYTHING, ONE_REGION, Band, Region, combined
from hf_posenc.errors import CannotCombine


@dataclass(frozen=True)
class KeyBias:
    """A bias that depends on the key alone, up to a constant per query: causal ALiBi.

    Counted from a fixed position, it grows with the sequence length, and scores lose precision. So the engine subtracts
    its value at the queries of each block. Key i must have the position of query i.

    Attributes:
        values: ``[batch or 1, heads, key]``, in float64 if the device supports it.
        slopes: ``[heads]`` if the bias is exactly −slope · (query − key); None if it is not linear.
    """

    values: Tensor
    slopes: Tensor | None = None


@dataclass(frozen=True)
class ToeplitzBias:
    """A bias that depends on the distance (query − key) alone: T5, symmetric ALiBi, any table or function of it.

    Attributes:
        of_distance: maps integer distances of any shape ``[…]`` to ``[heads, …]``, float32, with autograd.
        slopes: ``[heads]`` if the bias is exactly −slope · abs(query − key); else None.
    """

    of_distance: Callable[[Tensor], Tensor]
    slopes: Tensor | None = None


@dataclass(frozen=True)
class Block:
    """A block of queries with all keys of the call: the argument of content-dependent biases.

    Attributes:
        query: ``[batch, heads, n, head_dim]``, float32, rotated and scaled.
        key: ``[batch, kv_heads, key, head_dim]``, float32.
        scores: q · k · scaling, ``[batch, heads, n, key]``; empty if no bias reads it (`BlockBias.reads_scores`).
        scaling: factor of q · k.
        rows: indices of these queries in the call.
        query_positions: positions of the queries in the region, ``[batch or 1, n]``.
        key_positions: positions of the keys in the region, ``[batch or 1, key]``.
        seen: visible pairs (padding, packing and causality), bool, broadcasts to ``[batch, 1, n, key]``.
        steady: whether positions of queries and of keys run in steps of one.
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
        """The block with queries, keys and scores in float32, as content-dependent biases expect."""
        return replace(self, query=self.query.float(), key=self.key.float(), scores=self.scores.float())

    @property
    def distance(self) -> Tensor:
        """Query position minus key position, ``[batch or 1, n, key]``."""
        return self.query_positions[:, :, None] - self.key_positions[:, None, :]

    @property
    def distances(self) -> Tensor:
        """All distances in a block whose positions run in steps of one, the greatest first."""
        n, keys = self.query.shape[2], self.key.shape[2]
        first = self.query_positions[0, 0] - self.key_positions[0, 0]
        return first + torch.arange(n - 1, -keys, -1, device=self.query.device)

    def of_distance(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Values of a function of distances, ``[…]`` to ``[heads, …]``, at every pair, ``[batch or 1, heads, n, key]``.

        If positions run in steps of one, it is evaluated once per distance, without waiting for a GPU.
        """
        if not self.steady:
            return function(self.distance).transpose(0, 1)
        return self.at_pairs(function(self.distances))[None]

    def at_pairs(self, values: Tensor) -> Tensor:
        """Spread values at `distances` ``[…, m]`` to every pair, ``[…, n, key]``: each row is a shifted window."""
        backwards = torch.arange(self.query.shape[2] - 1, -1, -1, device=values.device)
        # A flip of overlapping rows would be stored key by key, which takes 30 times as long to read.
        return values.unfold(-1, self.key.shape[2], 1).index_select(-2, backwards)


@dataclass(frozen=True)
class BlockBias:
    """A bias that depends on queries and keys, or on more of a pair than its distance.

    Attributes:
        of_block: maps a `Block` of n queries to the bias ``[batch, heads, n, key]``, float32.
        reads_scores: whether it reads `Block.scores`, or stores its result elsewhere. Otherwise the engine may omit the
            scores, and overwrites the result in place.
        shifted: the same bias with its linear part in the keys as a shift of the queries, if it has such a part.
    """

    of_block: Callable[[Block], Tensor]
    reads_scores: bool = True
    shifted: ShiftedQuery | None = None


@dataclass(frozen=True)
class ShiftedQuery:
    """A bias u · k_j · scaling + rest, computed as (q_i + u) · k_j: one pass over the keys instead of two.

    Attributes:
        by: u, ``[heads, head_dim]``, float32.
        rest: the rest of the bias, with the interface of `BlockBias.of_block`; `Block.query` does not contain u.
    """

    by: Tensor
    rest: Callable[[Block], Tensor]


Bias = KeyBias | ToeplitzBias | BlockBias


@dataclass(frozen=True)
class ValueBias:
    """A positional term of the attention output: Shaw's second table.

    Attributes:
        of_weights: maps attention weights ``[batch, heads, n, key]`` and their `Block` to the bias
            ``[batch, heads, n, head_dim]``.
    """

    of_weights: Callable[[Tensor, Block], Tensor]


@dataclass(frozen=True)
class RowRotation:
    """A rotation that depends on the query; keys are cached unrotated and rotated for each query.

    Attributes:
        length_of: maps positions of queries ``[…]`` to the lengths whose rotation they use ``[…]``, integers.
        rotation_of: maps such a length to its rotation.
        frequencies_of: maps such lengths ``[…]`` to frequencies ``[…, pairs]``, float64, for traced graphs, where
            lengths have no values; None if that is not supported.
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
        """Whether there are several regions, or pairs outside of the only region."""
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
        """Whether the model's own attention function can compute the terms: only scales, which multiply the queries."""
        return self.only("row_scale") and not self.regions[0].differs_by_head

    def merge(self, other: Terms) -> Terms:
        """Combine two terms: biases add, scales multiply, visible bands intersect, other values come from one side.

        Raises:
            CannotCombine: both sides have regions, a row rotation, or a sink.
        """
        self._refuse("remap positions", self.split and other.split)
        self._refuse("rotate by row", self.row_rotation is not None and other.row_rotation is not None)
        self._refuse("bring a sink", self.sink is not None and other.sink is not None)
        return Terms(
            bias=self.bias + other.bias,
            values=self.values + other.values,
            query_scale=combined(mul, self.query_scale, other.query_scale),
            row_scale=combined(mul, self.row_scale, other.row_scale),
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
