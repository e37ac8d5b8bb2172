"""Bands of query-key pairs, and regions that remap positions within them: windows, remaps, chunks, sinks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hf_posenc.core.geometry import Rotation
from hf_posenc.errors import CannotCombine


@dataclass(frozen=True)
class Band:
    """A set of pairs of positions; ``None`` is no bound.

    Attributes:
        nearest, farthest: pairs with ``nearest ≤ distance < farthest``, distance being query − key.
        chunk: tokens per unit of distance: positions are counted in chunks of so many tokens.
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
        """The pairs of both.

        Raises:
            CannotCombine: they count distance in different chunks.
        """
        if self is other:  # as of schemes that hide nothing
            return self
        if self.chunk != other.chunk:
            raise CannotCombine(
                f"Bands in chunks of {self.chunk} and of {other.chunk} tokens have no common band. Keep one of them."
            )
        return Band(
            _tightest(max, self.nearest, other.nearest),
            _tightest(min, self.farthest, other.farthest),
            self.chunk,
            _tightest(max, self.rows_from, other.rows_from),
            _tightest(min, self.rows_until, other.rows_until),
            _tightest(min, self.keys_until, other.keys_until),
        )

    @property
    def is_of_distances(self) -> bool:
        """Whether the distance in tokens alone decides."""
        return self.chunk == 1 and self.rows_from is self.rows_until is self.keys_until is None

    def keys_seen(self, queries: slice, keys: int) -> slice:
        """The keys in reach of consecutive queries, both by index; the band is one of distances."""
        first = 0 if self.farthest is None else max(0, queries.start - self.farthest + 1)
        return slice(first, keys if self.nearest is None else min(keys, queries.stop - self.nearest))

    def holds(self, query: Tensor, key: Tensor) -> Tensor:
        """Which pairs of positions are in the band, bool; ``query`` and ``key`` broadcast against each other."""
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
"""Positions to other ones. Tables of cosines are kept by their maps: those that differ must not be equal."""


def value_of(place: PositionMap) -> Hashable:
    """What tells the maps of one scheme apart, without a reference to it: of a method, its function."""
    return getattr(place, "__func__", place)


def as_it_is(positions: Tensor) -> Tensor:
    """The positions themselves."""
    return positions


def at_zero(positions: Tensor) -> Tensor:
    """Zero for every position: nothing is rotated there."""
    return torch.zeros_like(positions)


@dataclass(frozen=True)
class Region:
    """A set of query-key pairs with remapped positions.

    Regions that remap and rotate keys alike share one copy of the keys.

    Attributes:
        band: the pairs that belong to it; the bands of a call are disjoint, and pairs outside all of them masked.
        query_at: position of a query to the position it is rotated by, whole or fractional, any shape.
        key_at: the same of a key.
        rotation: the region's own; None for the scheme's.
        query_decay_steps, key_decay_steps: position to the decay steps of its rotation.
        query_bands_at, key_bands_at: position ``[…]`` to that of each band of frequencies ``[…, bands]``, where these
            differ; ``query_at`` and ``key_at`` then say what biases count.
        bands: into how many bands the rotated pairs are divided evenly, fastest first; 0 where they do not differ.
        by_head: factor of all these positions for each query head, a tensor ``[heads]`` where it is learned; empty for
            none. Keys and values are then repeated for every query head, as each reads keys of its own.
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
        """Whether heads have positions of their own, so that query heads of a group share no keys."""
        return len(self.by_head) > 0

    @property
    def remaps(self) -> bool:
        """Whether it changes the position of some query or key."""
        return self.query_at is not as_it_is or self.key_at is not as_it_is or self.bands > 0

    @property
    def copy(self) -> tuple[object, ...]:
        """Identity of its rotated keys: regions with equal values share them."""
        return self.key_at, self.key_decay_steps, self.rotation, self.key_bands_at, self.by_head

    def rotated_by(self, shared: Rotation | None) -> Rotation | None:
        """Its rotation: its own, or the scheme's, as it differs by band and by head; None where nothing is rotated."""
        rotation = self.rotation or shared
        if rotation is None or not (self.differs_by_head or self.bands):
            return rotation
        axes, pairs = rotation.axes, len(rotation.frequencies)
        if self.bands:
            axes = tuple(pair * self.bands // pairs for pair in range(pairs))
        return replace(rotation, axes=axes, by_head=self.by_head)


ONE_REGION = (Region(),)


def _tightest(choose: Callable[[int, int], int], one: int | None, two: int | None) -> int | None:
    if one is None or two is None:
        return two if one is None else one
    return choose(one, two)
