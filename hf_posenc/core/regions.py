"""Bands of query–key pairs, and regions that remap positions within a band: windows, remaps, chunks, sinks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from hf_posenc.core.geometry import Rotation
from hf_posenc.errors import CannotCombine

T = TypeVar("T")


@dataclass(frozen=True)
class Band:
    """A set of query–key pairs, defined by their positions; ``None`` is no bound.

    Attributes:
        nearest, farthest: pairs with ``nearest ≤ distance < farthest``, where distance is query − key.
        chunk: number of tokens per unit of distance; positions are divided by it, rounded down.
        rows_from, rows_until: queries with ``rows_from ≤ position < rows_until``.
        keys_until: keys with ``position < keys_until``.
    """

    nearest: int | None = None
    farthest: int | None = None
    chunk: int = 1
    rows_from: int | None = None
    rows_until: int | None = None
    keys_until: int | None = None

    def __and__(self, other: Band) -> Band:
        """The pairs that are in both bands.

        Raises:
            CannotCombine: the bands count distances in different chunks.
        """
        if self is other:  # both are `EVERYTHING`, most often
            return self
        if self.chunk != other.chunk:
            raise CannotCombine(
                f"Bands in chunks of {self.chunk} and of {other.chunk} tokens have no common band. Keep one of them."
            )
        return Band(
            combined(max, self.nearest, other.nearest),
            combined(min, self.farthest, other.farthest),
            self.chunk,
            combined(max, self.rows_from, other.rows_from),
            combined(min, self.rows_until, other.rows_until),
            combined(min, self.keys_until, other.keys_until),
        )

    @property
    def is_of_distances(self) -> bool:
        """Whether the band depends on the distance in tokens alone."""
        return self.chunk == 1 and self.rows_from is self.rows_until is self.keys_until is None

    def keys_seen(self, queries: slice, keys: int) -> slice:
        """Indices of the keys in reach of consecutive queries. The band must depend on distances alone."""
        first = 0 if self.farthest is None else max(0, queries.start - self.farthest + 1)
        return slice(first, keys if self.nearest is None else min(keys, queries.stop - self.nearest))

    def holds(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether pairs of positions are in the band, bool; ``query`` and ``key`` broadcast against each other."""
        distance = query - key if self.chunk == 1 else query // self.chunk - key // self.chunk
        inside = torch.ones_like(distance, dtype=torch.bool)
        if self.nearest is not None:
            inside = inside & (distance >= self.nearest)
        if self.farthest is not None:
            inside = inside & (distance < self.farthest)
        if self.rows_from is not None:
            inside = inside & (query >= self.rows_from)
        if self.rows_until is not None:
            inside = inside & (query < self.rows_until)
        if self.keys_until is not None:
            inside = inside & (key < self.keys_until)
        return inside


EVERYTHING = Band()
PositionMap = Callable[[Tensor], Tensor]
"""Maps positions to other positions. It is a key of cached cosine tables: different maps must not compare equal."""


def value_of(place: PositionMap) -> Hashable:
    """Hashable identity of a map within its scheme, without a reference to the scheme: the function of a method."""
    return getattr(place, "__func__", place)


def as_it_is(positions: Tensor) -> Tensor:
    """Return the positions unchanged."""
    return positions


def at_zero(positions: Tensor) -> Tensor:
    """Return zero for every position: the rotation by zero changes nothing."""
    return torch.zeros_like(positions)


@dataclass(frozen=True)
class Region:
    """A set of query-key pairs with remapped positions.

    Regions that remap and rotate keys alike share one copy of the keys.

    Attributes:
        band: its pairs. The bands of a call are disjoint, and pairs outside all bands are masked.
        query_at: maps the position of a query to the position it is rotated by, whole or fractional, any shape.
        key_at: the same map for keys.
        rotation: the region's own rotation; None for the scheme's.
        query_decay_steps, key_decay_steps: map a position to the decay steps of its rotation.
        query_bands_at, key_bands_at: map positions ``[…]`` to positions in each frequency band ``[…, bands]``, if
            bands differ. Biases then read ``query_at`` and ``key_at``.
        bands: number of frequency bands of equal size, fastest first; 0 if all pairs have the same position.
        by_head: factor of all these positions for each query head, a tensor ``[heads]`` if learned; empty for none.
            Keys and values are then repeated for every query head, because each reads its own keys.
    """

    band: Band = field(default_factory=lambda: EVERYTHING)
    query_at: PositionMap = as_it_is
    key_at: PositionMap = as_it_is
    rotation: Rotation | None = None
    query_decay_steps: PositionMap = as_it_is
    key_decay_steps: PositionMap = as_it_is
    query_bands_at: PositionMap | None = None
    key_bands_at: PositionMap | None = None
    bands: int = 0
    by_head: tuple[float, ...] | Tensor = ()

    @property
    def differs_by_head(self) -> bool:
        """Whether every head has its own positions, so that query heads of a group share no keys."""
        return len(self.by_head) > 0

    @property
    def remaps(self) -> bool:
        """Whether the region changes positions."""
        return self.query_at is not as_it_is or self.key_at is not as_it_is or self.bands > 0

    @property
    def copy(self) -> tuple[object, ...]:
        """Identity of the rotated keys: regions with equal values share one copy."""
        return self.key_at, self.key_decay_steps, self.rotation, self.key_bands_at, self.by_head

    def rotated_by(self, shared: Rotation | None) -> Rotation | None:
        """The region's own rotation, or ``shared``, with its bands and head factors; None without a rotation."""
        rotation = self.rotation or shared
        if rotation is None or not (self.differs_by_head or self.bands):
            return rotation
        axes, pairs = rotation.axes, len(rotation.frequencies)
        if self.bands:
            axes = tuple(pair * self.bands // pairs for pair in range(pairs))
        return replace(rotation, axes=axes, by_head=self.by_head)


ONE_REGION = (Region(),)


def combined(combine: Callable[[T, T], T], one: T | None, two: T | None) -> T | None:
    """Result of ``combine(one, two)``, or the argument that is not None."""
    if one is None or two is None:
        return two if one is None else one
    return combine(one, two)
