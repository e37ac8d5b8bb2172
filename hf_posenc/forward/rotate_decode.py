"""Rotations for decoding: of one new token, and of cached keys when they are read.

Rotating one token takes as long as the calls of its operations. So all different queries and key copies of a new token
are concatenated along the heads, ``[batch, heads · queries + kv_heads · copies, 1, head_dim]``. Each head has its own
cosines and sines, and one operation rotates all heads.

With one copy per key, a KV cache holds the keys of the region that sees the most keys. Other regions see a few hundred
keys at most. Only these keys are rotated again when they are read, by tables that are computed once for all layers:

    R(p') k = R(p' − p) R(p) k        p, p': position of a key in the cached region, and in another region
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from hf_posenc.attention.call import RotateAtRead
from hf_posenc.core.constants import constant
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import PositionMap, Region, value_of
from hf_posenc.core.rotation import AHEAD, CosSinCache, Table, memoized_by_columns, rotate, rotate_at_once, table
from hf_posenc.core.tracing import is_traced
from hf_posenc.forward.rotate_qk import rotation_of
from hf_posenc.schemes.base import Scheme

RemappedRotation = tuple[Rotation, PositionMap]
"""A rotation, and the map from a token's position to the position it rotates by."""


def decode_rotation(
    regions: tuple[Region, ...], shared: Rotation | None, stored: int | None
) -> DecodeRotation | NoRotation | None:
    """Rotation of one token in all regions by one operation; None if that is not possible.

    Args:
        regions: regions of the scheme.
        shared: rotation of the scheme, for regions without their own.
        stored: number of the only region whose keys are rotated; None for a copy per different region.
    """
    rotations = [region.rotated_by(shared) for region in regions]
    if all(rotation is None for rotation in rotations):
        return NoRotation(len(regions))
    if any(r is None or r.learned or r.values or r.axes is not None or r.decay or r.differs_by_head for r in rotations):
        return None
    queries = [(r, region.query_at) for r, region in zip(rotations, regions, strict=True)]
    keys: dict[object, Any] = {}
    for number in range(len(regions)) if stored is None else (stored,):
        keys.setdefault(regions[number].copy, (rotations[number], regions[number].key_at))
    if len({(r.dims, r.layout) for r, _ in keys.values()}) > 1:
        return None
    return DecodeRotation(queries, list(keys.values()))  # type: ignore[arg-type]


@dataclass(frozen=True)
class NoRotation:
    """Rotation of schemes that rotate nothing, at any length."""

    regions: int

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
        """The unchanged queries for every region, the only copy of the keys, and the values."""
        return (q,) * self.regions, (k,), v


class DecodeRotation:
    """Rotation of the queries and keys of one token in all regions.

    Args:
        queries: rotation of each region's queries.
        keys: rotation of each different copy of a key.
    """

    def __init__(self, queries: list[RemappedRotation], keys: list[RemappedRotation]) -> None:
        self.queries = list(dict.fromkeys(queries))
        self.keys = keys
        self.query_of_region = [self.queries.index(rotation) for rotation in queries]
        self.rotations = list(dict.fromkeys([*self.queries, *keys]))
        self.layout = keys[0][0].layout
        self.tables = CosSinCache()
        self.indices: dict[tuple[int, int, torch.device], Tensor] = {}

    def at(self, position: int, device: torch.device) -> TokenRotation:
        """The rotation of a token at one position."""
        tables = self.tables.rows("decode", position, 1, device, self._table)
        return TokenRotation(self, tables, tables if len(self.rotations) == 1 else None)

    def _table(self, positions: Tensor) -> Table:
        """Tables of all different rotations, ``[1, rotations, position, dims]``."""
        tables = [table(rotation, place(positions)) for rotation, place in self.rotations]
        if len(tables) == 1:
            return tables[0]
        return torch.cat([own for own, _ in tables], dim=1), torch.cat([partner for _, partner in tables], dim=1)

    def tables_by_head(self, tables: Table, heads: int, kv_heads: int) -> Table:
        """Tables of every concatenated head, ``[1, heads · queries + kv_heads · copies, position, dims]``."""
        key = (heads, kv_heads, tables[0].device)
        index = self.indices.get(key)
        if index is None:
            numbers = [self.rotations.index(rotation) for rotation in self.queries for _ in range(heads)]
            numbers += [self.rotations.index(rotation) for rotation in self.keys for _ in range(kv_heads)]
            index = self.indices[key] = constant(tuple(numbers), torch.long, tables[0].device)
        return tables[0].index_select(1, index), tables[1].index_select(1, index)


@dataclass
class TokenRotation:
    """A `DecodeRotation` at one position, shared by the layers.

    Attributes:
        rotation: rotation of any position.
        tables: cosines and sines of its different rotations, ``[1, rotations, 1, dims]``.
        by_head: tables of every concatenated head, or one for all heads; None before the first layer.
    """

    rotation: DecodeRotation
    tables: Table
    by_head: Table | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
        """Rotate queries (one tensor per region) and keys (one tensor per different copy); values do not change.

        Args:
            q: ``[batch, heads, 1, head_dim]``.
            k: ``[batch, kv_heads, 1, head_dim]``; ``v`` has the same shape.
        """
        rotation, heads, kv_heads = self.rotation, q.shape[1], k.shape[1]
        if self.by_head is None:
            self.by_head = rotation.tables_by_head(self.tables, heads, kv_heads)
        queries, copies, numbers = len(rotation.queries), len(rotation.keys), rotation.query_of_region
        joined = rotate_at_once(torch.cat((q,) * queries + (k,) * copies, dim=1), rotation.layout, self.by_head)
        parts = joined.split_with_sizes((heads,) * queries + (kv_heads,) * copies, dim=1)
        by_region = parts[:queries] if queries == len(numbers) else tuple([parts[number] for number in numbers])
        return by_region, parts[queries:], v


AT_ONCE = 4096  # keys that are rotated in one operation; they fit the cache of a CPU core


def rotate_cached(rotation: Rotation, cos_sin: Callable[[slice], Table], keys: Tensor, columns: slice) -> Tensor:
    """Rotate cached keys to the positions of another region.

    Args:
        rotation: rotation of the channels.
        cos_sin: maps columns of the cache to cosines and sines of the difference of the two positions.
        keys: keys in some columns of the cache, ``[batch, kv_heads, columns, head_dim]``.
        columns: these columns.
    """
    tables = cos_sin(columns)
    if torch.is_grad_enabled() or is_traced() or keys.shape[2] > AT_ONCE:
        return rotate(keys, rotation, tables)
    own, partner = tables
    if rotation.layout == "interleaved" or rotation.dims < keys.shape[-1] or keys.dtype != own.dtype:
        return rotate_at_once(keys, rotation.layout, tables)
    half = keys.shape[-1] // 2
    partners = torch.cat((keys[..., half:], keys[..., :half]), dim=-1)
    return partners.mul_(partner).addcmul_(keys, own)  # in place, because decoding is limited by memory


def keys_at_read(scheme: Scheme, ctx: PositionContext) -> tuple[int, tuple[RotateAtRead | None, ...]]:
    """Number of the region whose keys are cached, and for every region the rotation of these keys to its positions.

    The rotation is None if the region reads keys as they are cached.

    Args:
        scheme: scheme with ``caches_one_key``.
        ctx: positions of the queries and of all keys.
    """
    regions, rotation = scheme.regions(ctx), rotation_of(scheme, ctx)
    assert rotation is not None  # without a rotation, the option for one copy is refused
    number = stored_region(regions)
    stored = regions[number]
    unscaled = scheme.memoized("rotation at read", lambda: replace(rotation, amplitude=1.0))  # cached keys are scaled
    rotations = [
        None
        if region.copy == stored.copy
        else partial(rotate_cached, unscaled, shift_tables(scheme, ctx, unscaled, stored, region))
        for region in regions
    ]
    return number, tuple(rotations)


def stored_region(regions: tuple[Region, ...]) -> int:
    """Number of the region that sees the most keys."""
    reaches = []
    for band in (region.band for region in regions):
        reach = inf if band.farthest is None else band.farthest * band.chunk
        reaches.append(reach if band.keys_until is None else min(reach, band.keys_until))
    return reaches.index(max(reaches))


def shift_tables(
    scheme: Scheme, ctx: PositionContext, rotation: Rotation, stored: Region, region: Region
) -> Callable[[slice], Table]:
    """Function from columns of the cache to cosines and sines of the difference of a key's positions in two regions."""

    def of_positions(positions: Tensor) -> Table:
        return table(rotation, region.key_at(positions) - stored.key_at(positions))

    first = None if is_traced() else ctx.first_key

    def of_columns(columns: slice) -> Table:
        if first is None:
            return of_positions(ctx.key_positions[:, columns])
        key = ("at read", value_of(region.key_at), value_of(stored.key_at), rotation)
        count = columns.stop - columns.start
        ahead = AHEAD if ctx.query_positions.shape[1] == 1 else 0
        return scheme.tables.rows(key, first + columns.start, count, ctx.device, of_positions, ahead)

    return of_columns if is_traced() else memoized_by_columns(of_columns)
