"""Regions of pairs at places of their own: each is cut into rectangles for the kernel, and all are merged.

    distance    near band: blocks of rows along the diagonal; far: {i − j ≥ w} is itself a causal square
    first keys  a column for the rows that are far enough
    chunks      the own chunk is a causal square, earlier ones are rectangles
    rows        a causal square with a rectangle before it

A decoding row sees one run of keys in each region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from hf_posenc.attention import flash_cpu, parts
from hf_posenc.attention.banded import blocks_of_band
from hf_posenc.attention.call import Call
from hf_posenc.attention.parts import Part
from hf_posenc.bands import Band, Region

Cut = Callable[[int, Band, int, int, torch.device], Iterator[Part]]


def accepts(call: Call) -> bool:
    """A causal square on the CPU, or a decoding row, with regions of kinds that can be cut and nothing else."""
    return (
        (call.triangle or (call.last_row and not torch.is_grad_enabled()))
        and call.ctx.causal
        and call.terms.only("regions")
        and all(cut_of(region.band) is not None for region in call.terms.regions)
        and (all(by_distance(region) for region in call.terms.regions) or one_start(call))
        and flash_cpu.usable(call.queries[0], call.keys[0], call.values)
    )


def attend(call: Call) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    scale = call.scaling * call.terms.logit_scale
    if call.last_row and call.key_length > 1:
        return _last_row(call, scale)
    cuts = [
        part
        for number, region in enumerate(call.terms.regions)
        for part in cut_of(region.band)(number, region.band, start_of(call), call.key_length, call.ctx.device)  # type: ignore[misc]
    ]
    return parts.attend(call.queries, call.keys, call.values, cuts, scale)


def cut_of(band: Band) -> Cut | None:
    """How a region of this kind is cut; None where it is of no kind of which that is known."""
    bounded = band.nearest is not None or band.farthest is not None
    by_row = band.rows_from is not None or band.rows_until is not None
    if band.chunk > 1 and bounded and not by_row and band.keys_until is None:
        return by_chunks
    if band.keys_until is not None and band.farthest is None and not by_row and band.chunk == 1:
        return first_keys
    if by_row and not bounded and band.keys_until is None:
        return by_rows
    if band.chunk == 1 and not by_row and band.keys_until is None:
        return along_diagonal if band.farthest is not None or band.nearest is None else far_square
    return None


def by_distance(region: Region) -> bool:
    """Whether it does not matter where a text begins."""
    return region.band == Band(region.band.nearest, region.band.farthest)


def one_start(call: Call) -> bool:
    """Whether it is known where the text begins, and the same in all rows of the batch."""
    if torch.compiler.is_compiling():
        return False
    first = call.ctx.key_positions[:, 0]
    return len(first) == 1 or bool((first == first[0]).all())


def start_of(call: Call) -> int:
    """Position of the first key; 0 where nothing depends on it."""
    if all(by_distance(region) for region in call.terms.regions):
        return 0
    return call.ctx.once("position of the first key", lambda: int(call.ctx.key_positions[0, 0]))


def along_diagonal(number: int, band: Band, start: int, length: int, device: torch.device) -> Iterator[Part]:
    """A band beside the diagonal in blocks of rows; masks are float32, as the kernel adds them."""
    nearest = max(0, band.nearest or 0)
    hidden = torch.finfo(torch.float32).min
    before, added = None, None
    for rows, seen, mask in blocks_of_band(Band(nearest, band.farthest), length, length, device):
        if mask is not None and mask is not before:
            before, added = mask, torch.zeros(mask.shape, device=device).masked_fill(~mask, hidden)[None, None]
        if seen.stop > seen.start:
            yield Part(number, rows, seen, mask is None, None if mask is None else added)


def far_square(number: int, band: Band, start: int, length: int, device: torch.device) -> Iterator[Part]:
    """All pairs from some distance on."""
    nearest = band.nearest or 0
    if length > nearest:
        yield Part(number, slice(nearest, length), slice(0, length - nearest), causal=True)


def first_keys(number: int, band: Band, start: int, length: int, device: torch.device) -> Iterator[Part]:
    """The first keys, for all rows from some distance on."""
    nearest, keys = max(0, band.nearest or 0), min((band.keys_until or 0) - start, length)
    if keys <= 0 or length <= nearest:
        return
    full = min(nearest + keys, length)  # from here on a row is far enough from all of them
    yield Part(number, slice(nearest, full), slice(0, full - nearest), causal=True)
    if full < length:
        yield Part(number, slice(full, length), slice(0, keys))


def by_chunks(number: int, band: Band, start: int, length: int, device: torch.device) -> Iterator[Part]:
    """Chunk by chunk of the rows: the keys of the chunks that lie within the band before it, and its own square."""
    chunk, nearest = band.chunk, max(0, band.nearest or 0)
    for c in range(start // chunk, (start + length - 1) // chunk + 1):
        rows = slice(max(0, c * chunk - start), min(length, (c + 1) * chunk - start))
        oldest = 0 if band.farthest is None else max(0, (c - band.farthest + 1) * chunk - start)
        before = min(rows.start, (c - max(nearest, 1) + 1) * chunk - start)
        if oldest < before:
            yield Part(number, rows, slice(oldest, before))
        if nearest == 0 and (band.farthest is None or band.farthest > 0):
            yield Part(number, rows, rows, causal=True)


def by_rows(number: int, band: Band, start: int, length: int, device: torch.device) -> Iterator[Part]:
    """A range of rows with all keys up to them."""
    first = max(0, (band.rows_from or 0) - start)
    last = length if band.rows_until is None else min(length, band.rows_until - start)
    if first >= last:
        return
    if first > 0:
        yield Part(number, slice(first, last), slice(0, first))
    yield Part(number, slice(first, last), slice(first, last), causal=True)


def keys_of_row(band: Band, start: int, row: int) -> slice:
    """The run of keys that one row, at index ``row``, sees in a region."""
    low, high, place = 0, row + 1, start + row
    if (band.rows_from is not None and place < band.rows_from) or (
        band.rows_until is not None and place >= band.rows_until
    ):
        return slice(0, 0)
    chunk = place // band.chunk
    if band.farthest is not None:
        low = max(low, (chunk - band.farthest + 1) * band.chunk - start)
    if band.nearest is not None:
        high = min(high, (chunk - band.nearest + 1) * band.chunk - start)
    if band.keys_until is not None:
        high = min(high, band.keys_until - start)
    return slice(low, max(low, high))


def _last_row(call: Call, scale: float) -> Tensor:
    query, out, lse = call.queries[0], None, None
    for number, region in enumerate(call.terms.regions):
        seen = keys_of_row(region.band, start_of(call), call.key_length - 1)
        if seen.stop == seen.start:
            continue
        more, more_lse = flash_cpu.attend(
            call.queries[number], call.keys[number][:, :, seen], call.values[:, :, seen],
            causal=False, mask=None, scale=scale,
        )  # fmt: skip
        if out is None or lse is None:
            out, lse = more.float(), more_lse
        else:
            parts.merge_into(out, lse, slice(0, 1), more, more_lse)
    return torch.zeros_like(query) if out is None else out.to(query.dtype)
