"""Rotations of decoding: of one new token, and of cached keys that it reads.

A rotation of so few numbers costs what it costs to call it. The heads of all different queries and key copies of a new
token are laid side by side, ``[batch, heads · queries + kv_heads · copies, 1, head_dim]``, and each has its own cosines
and sines: they are rotated in one operation.

A KV cache holds one copy of each key, of the region that sees the most keys, and the copies of others follow from it.
They see a few hundred keys at most, and only these are rotated, by tables worked out once for all layers:

    R(p') k = R(p' − p) R(p) k        p, p': positions of a key in the region whose copy is cached, and in another one
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.constants import constant
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import PositionMap, Region, value_of
from hf_posenc.core.rotation import AHEAD, CosSinCache, Table, once, rotate, rotate_at_once, table
from hf_posenc.core.tracing import is_traced
from hf_posenc.forward.rotate_qk import rotation_of
from hf_posenc.schemes.base import Scheme

Use = tuple[Rotation, PositionMap]


def decode_rotation(
    regions: tuple[Region, ...], shared: Rotation | None, stored: int | None
) -> DecodeRotation | NoRotation | None:
    """How queries and keys of these regions are rotated in one operation; None where that is not possible.

    Args:
        regions: of the scheme.
        shared: its rotation, for regions that have none of their own.
        stored: number of the one region whose keys are rotated; None for a copy for each that differs.
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
    """Of schemes of which only a bias knows the positions, at any length."""

    regions: int

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
        """The query of every region, the one copy of the keys, and the values."""
        return (q,) * self.regions, (k,), v


class DecodeRotation:
    """Rotation of the queries and keys of one token in all regions, as options decide it.

    Attributes:
        queries: rotation and remapped position of each region's queries.
        keys: likewise of the different copies of a key.
    """

    def __init__(self, queries: list[Use], keys: list[Use]) -> None:
        self.different = list(dict.fromkeys(queries))
        self.keys = keys
        self.of_region = [self.different.index(use) for use in queries]
        self.uses = list(dict.fromkeys([*self.different, *keys]))
        self.layout = keys[0][0].layout
        self.tables = CosSinCache()
        self.indices: dict[tuple[int, int, torch.device], Tensor] = {}

    def at(self, position: int, device: torch.device) -> TokenRotation:
        """The rotation of one position."""
        tables = self.tables.rows("decode", position, 1, device, self._table)
        return TokenRotation(self, tables, tables if len(self.uses) == 1 else None)

    def _table(self, positions: Tensor) -> Table:
        """Tables of all uses, ``[1, uses, position, dims]``."""
        tables = [table(rotation, place(positions)) for rotation, place in self.uses]
        if len(tables) == 1:
            return tables[0]
        return torch.cat([own for own, _ in tables], dim=1), torch.cat([partner for _, partner in tables], dim=1)

    def spread(self, tables: Table, heads: int, kv_heads: int) -> Table:
        """A table for each of the heads laid side by side."""
        kind = (heads, kv_heads, tables[0].device)
        index = self.indices.get(kind)
        if index is None:
            numbers = [self.uses.index(use) for use in self.different for _ in range(heads)]
            numbers += [self.uses.index(use) for use in self.keys for _ in range(kv_heads)]
            index = self.indices[kind] = constant(tuple(numbers), torch.long, tables[0].device)
        return tables[0].index_select(1, index), tables[1].index_select(1, index)


@dataclass
class TokenRotation:
    """A `DecodeRotation` at one position, shared by the layers.

    Attributes:
        kind: what it is of.
        tables: cosines and sines of its uses, ``[1, uses, 1, dims]``.
        spread: the same for every head, or one for all of them; None before the first layer.
    """

    kind: DecodeRotation
    tables: Table
    spread: Table | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
        """Queries, one tensor a region; the different copies of the keys; and the values as they are.

        Args:
            q: ``[batch, heads, 1, head_dim]``.
            k: ``[batch, kv_heads, 1, head_dim]``; ``v`` likewise.
        """
        kind, heads, kv_heads = self.kind, q.shape[1], k.shape[1]
        if self.spread is None:
            self.spread = kind.spread(self.tables, heads, kv_heads)
        queries, copies = len(kind.different), len(kind.keys)
        together = rotate_at_once(torch.cat((q,) * queries + (k,) * copies, dim=1), kind.layout, self.spread)
        parts = together.split_with_sizes((heads,) * queries + (kv_heads,) * copies, dim=1)
        by_region = parts[:queries] if queries == len(kind.of_region) else tuple([parts[n] for n in kind.of_region])
        return by_region, parts[queries:], v


AT_ONCE = 4096  # keys that are rotated in one operation: few enough for the cache of a CPU core


@dataclass(frozen=True)
class ReadRotation:
    """Rotation of cached keys to those of another region.

    Attributes:
        rotation: of their channels.
        cos_sin: columns of the cache to cosines and sines of the difference of the two positions.
    """

    rotation: Rotation
    cos_sin: Callable[[slice], Table]

    def __call__(self, keys: Tensor, columns: slice) -> Tensor:
        """Rotate the cached keys of some columns, ``[batch, kv_heads, columns, head_dim]``."""
        cos_sin, rotation = self.cos_sin(columns), self.rotation
        if torch.is_grad_enabled() or is_traced() or keys.shape[2] > AT_ONCE:
            return rotate(keys, rotation, cos_sin)
        if rotation.layout == "half" and rotation.dims == keys.shape[-1] and keys.dtype == cos_sin[0].dtype:
            return rotate_halves(keys, cos_sin)
        return rotate_at_once(keys, rotation.layout, cos_sin)


def rotate_halves(keys: Tensor, cos_sin: Table) -> Tensor:
    """`rotate_at_once` of whole heads in layout ``half``, with one tensor less: partners are overwritten by the result.

    A decoded token waits for memory, not for arithmetic. Without gradient, and in the dtype of the tables.
    """
    own, partner = cos_sin
    half = keys.shape[-1] // 2
    partners = torch.cat((keys[..., half:], keys[..., :half]), dim=-1)
    return partners.mul_(partner).addcmul_(keys, own)


@dataclass(frozen=True)
class KeysAtRead:
    """What is cached of the keys of one forward pass, and how each region reads it.

    Attributes:
        stored: number of the region whose copy is cached.
        rotations: one a region; None where it reads keys as they are cached.
    """

    stored: int
    rotations: tuple[ReadRotation | None, ...]


def keys_at_read(scheme: Scheme, ctx: PositionContext) -> KeysAtRead:
    """How the regions of a scheme that caches one copy of each key read it.

    Args:
        scheme: whose ``caches_one_key`` is true.
        ctx: positions of the queries and of all keys.
    """
    regions, rotation = scheme.regions(ctx), rotation_of(scheme, ctx)
    assert rotation is not None  # else there would be one copy in any case, and the option is refused
    stored, alone = stored_region(regions), scheme.keep("rotation at read", lambda: replace(rotation, amplitude=1.0))
    of_stored = regions[stored]
    return KeysAtRead(
        stored,
        tuple(
            None
            if region.copy == of_stored.copy
            else ReadRotation(alone, differences(scheme, ctx, alone, of_stored, region))
            for region in regions
        ),
    )


def stored_region(regions: tuple[Region, ...]) -> int:
    """Number of the region that sees the most keys."""
    most = []
    for band in (region.band for region in regions):
        reach = inf if band.farthest is None else band.farthest * band.chunk
        most.append(reach if band.keys_until is None else min(reach, band.keys_until))
    return most.index(max(most))


def differences(
    scheme: Scheme, ctx: PositionContext, rotation: Rotation, stored: Region, region: Region
) -> Callable[[slice], Table]:
    """Cosines and sines of the difference of a key's positions in two regions, by columns of the cache."""

    def of_positions(positions: Tensor) -> Table:
        return table(rotation, region.key_at(positions) - stored.key_at(positions))

    first = None if is_traced() else ctx.first_key

    def of_columns(columns: slice) -> Table:
        if first is None:
            return of_positions(ctx.key_positions[:, columns])
        use = ("at read", value_of(region.key_at), value_of(stored.key_at), rotation)
        count = columns.stop - columns.start
        ahead = AHEAD if ctx.query_positions.shape[1] == 1 else 0
        return scheme.tables.rows(use, first + columns.start, count, ctx.device, of_positions, ahead)

    return of_columns if is_traced() else once(of_columns)
