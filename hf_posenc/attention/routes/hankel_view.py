"""A bias of the distance as the masks of a kernel: strided views of one table, and the rectangles of pairs to compute.

With the query rows in reverse order, entry (r, j) is u[r + j] for u the table, largest distance first: a Hankel matrix,
which is a strided view of u with both strides 1. Outside a window, and causally for the future, u is −∞; rectangles
leave out what is −∞ everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from hf_posenc.core.regions import EVERYTHING, Band

Rectangle: TypeAlias = tuple[slice, slice]  # rows and keys
ROWS = 256  # of 128, 256, 512 the fastest at 2k
WINDOW_ROWS = 64  # of 64, 128, 256 the fastest with a window of 128; with one of 1,024 as fast as 128
# From 768 rows on the kernel takes them in larger tiles, which it does a fifth faster; but a rectangle of many rows
# cannot stop at the diagonal. So many rows share what lies behind all of them, once that is long enough to be worth it.
TOGETHER, LONG = 1024, 4096


@dataclass(frozen=True)
class Hankel:
    """A table ``[heads, queries + keys − 1]``, largest distance first, as masks of reversed rows; −∞ outside a band."""

    table: Tensor
    queries: int
    keys: int
    band: Band

    @classmethod
    def of(cls, table: Tensor, queries: int, keys: int, band: Band) -> Hankel:
        """A copy of the table, whose first entry is of distance ``keys − 1``."""
        u = table.clone(memory_format=torch.contiguous_format)
        if band.nearest is not None:
            u[:, keys - band.nearest :] = -torch.inf
        if band.farthest is not None:
            u[:, : max(0, keys - band.farthest)] = -torch.inf
        return cls(u, queries, keys, band)

    def mask(self, rows: slice, keys: slice) -> Tensor:
        """``[1, heads, rows, keys]``, a view."""
        heads, width = self.table.shape
        shape = (1, heads, rows.stop - rows.start, keys.stop - keys.start)
        return self.table.as_strided(shape, (heads * width, width, 1, 1), self.queries - rows.stop + keys.start)

    def seen(self, rows: slice) -> slice:
        """The keys that some queries see."""
        ahead = self.keys - self.queries
        return self.band.keys_seen(slice(rows.start + ahead, rows.stop + ahead), self.keys)

    def blocks(self) -> Iterator[tuple[slice, list[Rectangle]]]:
        """Blocks of rows, and the rectangles each consists of; the last may add to rows that others have set."""
        if self.band == EVERYTHING:  # nothing can be skipped, and one call does it all
            yield slice(0, self.queries), [(slice(0, self.queries), slice(0, self.keys))]
        elif self.band.farthest is not None:
            for rows in _pieces(0, self.queries, WINDOW_ROWS):
                yield rows, [(rows, self.seen(rows))]
        else:
            yield from self._to_the_start()

    def _to_the_start(self) -> Iterator[tuple[slice, list[Rectangle]]]:
        """Blocks of rows that see all keys up to their own, or to some behind it."""
        long = self.keys >= LONG
        for block in _pieces(0, self.queries, TOGETHER if long else ROWS):
            first = block.start + self.keys - self.queries if long else 0
            near = [(rows, slice(first, self.seen(rows).stop)) for rows in _pieces(block.start, block.stop, ROWS)]
            yield block, near + ([(block, slice(0, first))] if first > 0 else [])


def _pieces(start: int, stop: int, size: int) -> Iterator[slice]:
    for first, end in pairwise([*range(start, stop, size), stop]):
        yield slice(first, end)
