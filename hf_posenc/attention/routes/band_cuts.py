"""Cut bands of query-key pairs into rectangles and causal squares for the kernel.

    distance    near band: blocks of queries along the diagonal, or a window; far: {i − j ≥ w} is itself a causal square
    first keys  a column for the queries that are far enough
    chunks      the own chunk is a causal square, earlier ones are rectangles
    rows        a causal square with a rectangle before it

A decode query has one slice of keys in each band.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.merge import PartialAttention
from hf_posenc.core.regions import Band, Region
from hf_posenc.core.tracing import is_traced

BLOCK = 256  # queries that share the unmasked middle of a band, and set the block size of the kernel
EDGE = 32  # queries that share a mask at its edges

Cut = Callable[[int, Band, int, int, torch.device], Iterator[PartialAttention]]


def bands_of(call: AttentionCall) -> list[Band]:
    """The band of each region; without regions, the window."""
    if call.terms.split:
        return [region.band for region in call.terms.regions]
    return [call.terms.visible]


def is_window(band: Band) -> bool:
    """Whether a band depends on distance alone and includes a query's own key, so that no query is without a key."""
    own = (band.nearest is None or band.nearest <= 0) and (band.farthest is None or band.farthest > 0)
    return own and band.is_of_distances


def can_split(call: AttentionCall) -> bool:
    """Whether a decoder's call has regions that can be cut, or a bounded window, and no other terms except a sink."""
    terms = call.terms
    window = terms.visible.farthest is not None and is_window(terms.visible)
    return (
        call.ctx.causal
        and (terms.only("regions", "sink") or (terms.only("visible", "sink") and window))
        and None not in [cut_of(region.band) for region in terms.regions]
        and (by_distance(terms.regions) or one_start(call))
    )


def by_distance(regions: Iterable[Region]) -> bool:
    """Whether no region depends on the first position of a sequence."""
    return all(region.band.is_of_distances for region in regions)


def cut_of(band: Band, *, by_window: bool = False) -> Cut | None:
    """The function that cuts regions of this kind, for kernels with masks or with windows; None if no function can."""
    by_row = band.rows_from is not None or band.rows_until is not None
    if band.chunk > 1:
        bounded = band.nearest is not None or band.farthest is not None
        return by_chunks if bounded and not by_row and band.keys_until is None else None
    if band.keys_until is not None:
        return first_keys if band.farthest is None and not by_row else None
    if band.farthest is None:
        return by_rows
    if by_row:
        return None
    return windowed if by_window else along_diagonal


def windowed(number: int, band: Band, start: int, length: int, device: torch.device) -> Iterator[PartialAttention]:
    """A band next to the diagonal without a mask: shifted by its nearest distance, a causal square with a window.

    nearest ≤ i − j < farthest   =   rows nearest …, keys … length − nearest, causal, window farthest − nearest
    """
    nearest = max(0, band.nearest or 0)
    farthest = length if band.farthest is None else min(band.farthest, length)
    if nearest < farthest:
        window = farthest - nearest if farthest < length else None
        yield PartialAttention(number, slice(nearest, length), slice(0, length - nearest), True, window)


def along_diagonal(
    number: int, band: Band, start: int, length: int, device: torch.device
) -> Iterator[PartialAttention]:
    """A band next to the diagonal: keys visible to whole blocks of queries, and masked edges in smaller blocks.

    A mask costs a sixth of the time, and small blocks a fifth, but every masked pair is wasted computation.
    """
    nearest, done = max(0, band.nearest or 0), 0
    if nearest == 0:  # all keys are visible to the first queries, and the kernel's own causality needs no mask
        done = length if band.farthest is None else min(length, band.farthest)
        yield PartialAttention(number, slice(0, done), slice(0, done), causal=True)
    edge = Edge(number, Band(nearest, band.farthest), device)
    for first in range(done, length, BLOCK):
        end = min(first + BLOCK, length)
        low = 0 if band.farthest is None else max(0, end - band.farthest)
        high = first - nearest + 1
        if high - low >= BLOCK:
            yield PartialAttention(number, slice(first, end), slice(low, high))
        else:  # too few keys are visible to the whole block: the smaller blocks take them all
            low, high = 0, 0
        for edge_start in range(first, end, EDGE):
            rows = slice(edge_start, min(edge_start + EDGE, end))
            yield from edge.parts(rows, 0, low)
            yield from edge.parts(rows, high, length)


class Edge:
    """Masked partials of blocks of queries at the edges of a band; equal masks are made once.

    Masked entries are the lowest float, not −∞, so that a query without visible keys has weight 0 in the merge.
    """

    def __init__(self, number: int, band: Band, device: torch.device) -> None:
        self.number, self.band, self.device = number, band, device
        self.masks: dict[tuple[int, int, int], Tensor] = {}

    def parts(self, rows: slice, low: int, high: int) -> Iterator[PartialAttention]:
        """At most one partial: the keys in ``low … high`` that are visible to some of the queries."""
        near, far = self.band.nearest or 0, self.band.farthest
        low = low if far is None else max(low, rows.start - far + 1)
        high = min(high, rows.stop - near)
        if low < high:
            yield PartialAttention(self.number, rows, slice(low, high), mask=self.mask(rows, low, high))

    def mask(self, rows: slice, low: int, high: int) -> Tensor:
        """Mask that the kernel adds to the scores, float32: 0 for visible keys."""
        offsets = (rows.stop - rows.start, low - rows.start, high - rows.start)
        if offsets not in self.masks:
            i = torch.arange(rows.stop - rows.start, device=self.device)[:, None]
            j = torch.arange(low - rows.start, high - rows.start, device=self.device)
            hidden = ~self.band.holds(i, j)
            self.masks[offsets] = torch.zeros(hidden.shape, device=self.device).masked_fill(
                hidden, torch.finfo(torch.float32).min
            )[None, None]
        return self.masks[offsets]


def first_keys(number: int, band: Band, start: int, length: int, device: torch.device) -> Iterator[PartialAttention]:
    """The first keys, for all queries from some distance on."""
    nearest, keys = max(0, band.nearest or 0), min((band.keys_until or 0) - start, length)
    if keys <= 0 or length <= nearest:
        return
    full = min(nearest + keys, length)  # from here on a query is far enough from all of them
    yield PartialAttention(number, slice(nearest, full), slice(0, full - nearest), causal=True)
    if full < length:
        yield PartialAttention(number, slice(full, length), slice(0, keys))


def by_chunks(number: int, band: Band, start: int, length: int, device: torch.device) -> Iterator[PartialAttention]:
    """For each chunk of queries: the keys of earlier chunks within the band, and the chunk's own causal square."""
    chunk, nearest = band.chunk, max(0, band.nearest or 0)
    for c in range(start // chunk, (start + length - 1) // chunk + 1):
        rows = slice(max(0, c * chunk - start), min(length, (c + 1) * chunk - start))
        oldest = 0 if band.farthest is None else max(0, (c - band.farthest + 1) * chunk - start)
        before = min(rows.start, (c - max(nearest, 1) + 1) * chunk - start)
        if oldest < before:
            yield PartialAttention(number, rows, slice(oldest, before))
        if nearest == 0 and (band.farthest is None or band.farthest > 0):
            yield PartialAttention(number, rows, rows, causal=True)


def by_rows(number: int, band: Band, start: int, length: int, device: torch.device) -> Iterator[PartialAttention]:
    """All queries or a range, with all keys up to their own positions, or up to some distance before them."""
    nearest = max(0, band.nearest or 0)
    first = max(nearest, (band.rows_from or 0) - start)
    last = length if band.rows_until is None else min(length, band.rows_until - start)
    if first >= last:
        return
    if first > nearest:
        yield PartialAttention(number, slice(first, last), slice(0, first - nearest))
    yield PartialAttention(number, slice(first, last), slice(first - nearest, last - nearest), causal=True)


def of_last_rows(cuts: Iterable[PartialAttention], first: int) -> Iterator[PartialAttention]:
    """Restrict the partials of a square to the queries from ``first`` on, and number these from 0."""
    for part in cuts:
        skipped = max(0, first - part.rows.start)
        rows = slice(part.rows.start + skipped - first, part.rows.stop - first)
        if rows.stop <= 0:
            continue
        if part.causal and skipped:
            square = part.keys.start + skipped
            yield PartialAttention(part.region, rows, slice(part.keys.start, square))
            yield PartialAttention(part.region, rows, slice(square, part.keys.stop), causal=True)
        else:
            yield replace(part, rows=rows, mask=part.mask[:, :, skipped:] if isinstance(part.mask, Tensor) else None)


def keys_of_row(band: Band, start: int, row: int) -> slice:
    """The slice of keys that the query at index ``row`` sees in a band."""
    low, high, position = 0, row + 1, start + row
    if (band.rows_from is not None and position < band.rows_from) or (
        band.rows_until is not None and position >= band.rows_until
    ):
        return slice(0, 0)
    chunk = position // band.chunk
    if band.farthest is not None:
        low = max(low, (chunk - band.farthest + 1) * band.chunk - start)
    if band.nearest is not None:
        high = min(high, (chunk - band.nearest + 1) * band.chunk - start)
    if band.keys_until is not None:
        high = min(high, band.keys_until - start)
    return slice(low, max(low, high))


def seen_by_newest(call: AttentionCall) -> list[tuple[int, slice]]:
    """Number of each band in which the newest query sees keys, and the slice of these keys."""
    start, row = start_of(call), call.key_length - 1
    seen = [(number, keys_of_row(band, start, row)) for number, band in enumerate(bands_of(call))]
    return [(number, keys) for number, keys in seen if keys.stop > keys.start]


def one_start(call: AttentionCall) -> bool:
    """Whether the first position is known and the same in all rows of the batch."""
    first = call.ctx.key_positions[:, :1]
    return not is_traced() and (first.shape[0] == 1 or bool((first == first[:1]).all()))


def start_of(call: AttentionCall) -> int:
    """Position of the first key; 0 if no region depends on it."""
    return 0 if by_distance(call.terms.regions) else first_key(call)


def first_key(call: AttentionCall) -> int:
    """Position of the first key. It is read from the device if the context does not know it."""
    known = call.ctx.first_key
    if known is not None:
        return known
    return call.ctx.once("position of the first key", lambda: int(call.ctx.key_positions[0, 0]))
