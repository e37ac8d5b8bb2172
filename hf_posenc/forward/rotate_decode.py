"""Rotate one new token: its queries and keys of all regions in one operation.

A rotation of so few numbers costs what it costs to call it. The heads of all different queries and key copies are laid
side by side, ``[batch, heads · queries + kv_heads · copies, 1, head_dim]``, and each has its own cosines and sines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.constants import constant
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import PositionMap, Region
from hf_posenc.core.rotation import CosSinCache, Table, rotate_at_once, table

Use = tuple[Rotation, PositionMap]


def decode_rotation(
    regions: tuple[Region, ...], shared: Rotation | None, stored: int | None = None
) -> DecodeRotation | NoRotation | None:
    """How queries and keys of these regions are rotated in one operation; None where that is not possible.

    Args:
        regions: of the scheme.
        shared: its rotation, for regions that have none of their own.
        stored: number of the one region whose keys are rotated; None for a copy for each that differs.
    """
    rotations = [region.rotation or shared for region in regions]
    if all(rotation is None for rotation in rotations):
        return NoRotation(len(regions))
    if any(r is None or r.learned or r.values or r.axes is not None or r.decay for r in rotations):
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
