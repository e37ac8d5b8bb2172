"""A distance bias as kernel masks: strided views of one table, and the rectangles of pairs to compute.

Let u be the table, largest distance first. With the query rows in reverse order, entry (r, j) is u[r + j]: a Hankel
matrix, which is a strided view of u with both strides 1. u is −∞ outside a window and, in a decoder, for later keys.
The rectangles leave out areas that are −∞ everywhere.
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
# From 768 rows on, the kernel uses larger tiles, which are a fifth faster; but a rectangle of many rows cannot stop at
# the diagonal. So in long texts, LARGE rows share one rectangle: the keys before all of them.
LARGE, LONG = 1024, 4096


@dataclass(frozen=True)
class Hankel:
    """A table ``[heads, queries + keys − 1]``, largest distance first, −∞ outside a band; masks reverse the rows."""

    table: Tensor
    queries: int
    keys: int
    band: Band

    @classmethod
    def of(cls, table: Tensor, queries: int, keys: int, band: Band) -> Hankel:
        """Copy the table, whose first entry is for distance ``keys − 1``, and set it to −∞ outside the band."""
        u = table.clone(memory_format=torch.contiguous_format)
        if band.nearest is not None:
            u[:, keys - band.nearest :] = -torch.inf
        if band.farthest is not None:
            u[:, : max(0, keys - band.farthest)] = -torch.inf
        return cls(u, queries, keys, band)

    def mask(self, rows: slice, keys: slice) -> Tensor:
        """Mask ``[1, heads, rows, keys]`` with reversed rows, a view of the table."""
        heads, width = self.table.shape
        shape = (1, heads, rows.stop - rows.start, keys.stop - keys.start)
        return self.table.as_strided(shape, (heads * width, width, 1, 1), self.queries - rows.stop + keys.start)

    def seen(self, rows: slice) -> slice:
        """The keys that some queries see."""
        ahead = self.keys - self.queries
        return self.band.keys_seen(slice(rows.start + ahead, rows.stop + ahead), self.keys)

    def blocks(self) -> Iterator[tuple[slice, list[Rectangle]]]:
        """Blocks of rows, each with its rectangles. The last rectangle may cover rows of earlier ones, to be merged."""
        if self.band == EVERYTHING:  # nothing can be skipped, so one call computes everything
            yield slice(0, self.queries), [(slice(0, self.queries), slice(0, self.keys))]
        elif self.band.farthest is not None:
            for rows in _pieces(0, self.queries, WINDOW_ROWS):
                yield rows, [(rows, self.seen(rows))]
        else:
            yield from self._to_the_start()

    def _to_the_start(self) -> Iterator[tuple[slice, list[Rectangle]]]:
        """Blocks of rows that see all earlier keys, without a bound on the distance."""
        long = self.keys >= LONG
        for block in _pieces(0, self.queries, LARGE if long else ROWS):
            first = block.start + self.keys - self.queries if long else 0
            near = [(rows, slice(first, self.seen(rows).stop)) for rows in _pieces(block.start, block.stop, ROWS)]
            yield block, near + ([(block, slice(0, first))] if first > 0 else [])


def _pieces(start: int, stop: int, size: int) -> Iterator[slice]:
    for first, end in pairwise([*range(start, stop, size), stop]):
        yield slice(first, end)
