"""Masks of flex attention: the caller's mask, causality, a window and the band of a region, as one `BlockMask`.

If the user chose flex attention, transformers passes its mask as a `BlockMask`; otherwise the mask is bool, or None.

Tiles are computed from the smallest and largest position of each, not from all pairs. In a tile of queries q₀ … q₁ and
keys k₀ … k₁, distances run from q₀ − k₁ to q₁ − k₀. If a band contains some of them but not all, the kernel evaluates
the mask for each pair of the tile. A tile has 128 · 128 pairs, so a million tokens have 61 million flags, made once per
forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from hf_posenc.attention.call import AttentionCall
from hf_posenc.core.regions import EVERYTHING, Band

SIZE = (128, 128)

Mask = BlockMask | Tensor | None


def mask_of(call: AttentionCall, mask: Mask, band: Band) -> BlockMask | None:
    """The caller's mask, restricted to a window and a band; made once per forward pass and shared by the layers."""
    bands = tuple(b for b in (call.terms.visible, band) if b != EVERYTHING)
    if isinstance(mask, BlockMask) and not bands:
        return mask
    if mask is None and not bands and not call.ctx.causal:
        return None
    key = ("flex mask", bands, None if mask is None else id(mask), call.query_length, call.key_length)
    return call.ctx.once(key, lambda: _block_mask_of(call, mask, bands))


def _block_mask_of(call: AttentionCall, mask: Mask, bands: tuple[Band, ...]) -> BlockMask:
    size = mask.BLOCK_SIZE if isinstance(mask, BlockMask) else SIZE
    query, key, device = call.ctx.query_positions, call.ctx.key_positions, call.values.device
    parts = [band_tiles(band, query, key, size) for band in bands]
    by_index = mask is None and call.ctx.causal  # not by position: positions given by the caller may restart
    first, batch = scalar(call.first_query, device), call.values.shape[0]
    visible: Any = None
    if isinstance(mask, BlockMask):
        parts.append(block_mask_tiles(mask))
        visible = mask.mask_mod
    elif mask is not None:
        pairs = mask[..., : call.key_length].expand(-1, -1, call.query_length, -1)
        parts.append(tensor_tiles(pairs, size))
        of_sample = pairs.expand(batch, -1, -1, -1)
        visible = lambda b, h, q, kv: of_sample[b, 0, q, kv]  # noqa: E731
    elif by_index:
        rows, columns = torch.arange(call.query_length, device=device), torch.arange(call.key_length, device=device)
        parts.append(band_tiles(Band(0, None), (rows + first)[None], columns[None], size))
    query_positions, key_positions = query.expand(batch, -1), key.expand(batch, -1)

    def pair(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        inside = q + first >= kv if by_index else q >= 0
        for band in bands:
            inside = inside & band.holds(query_positions[b, q], key_positions[b, kv])
        return inside if visible is None else inside & visible(b, h, q, kv)

    return block_mask(reduce(and_, parts), pair, (call.query_length, call.key_length), size)


def scalar(value: int, device: torch.device) -> Tensor:
    """A whole number as a tensor without dimensions, made on the device without a copy from the CPU."""
    return torch.full((), value, dtype=torch.long, device=device)


@dataclass(frozen=True)
class Tiles:
    """Flags ``[batch or 1, heads or 1, query tiles, key tiles]``, bool.

    Attributes:
        some: at least one pair of the tile may be visible.
        every: all pairs of the tile are visible.
    """

    some: Tensor
    every: Tensor

    def __and__(self, other: Tiles) -> Tiles:
        """Tiles of the intersection of two masks."""
        return Tiles(self.some & other.some, self.every & other.every)


def band_tiles(band: Band, query: Tensor, key: Tensor, size: tuple[int, int] = SIZE) -> Tiles:
    """Tiles of a band.

    Args:
        band: a set of pairs of positions.
        query: positions ``[batch or 1, query]``, in any order.
        key: positions ``[batch or 1, key]``, in any order.
        size: rows and keys of a tile.
    """
    (q0, q1), (k0, k1) = tile_bounds(query, size[0]), tile_bounds(key, size[1])
    q0, q1, k0, k1 = q0[:, :, None], q1[:, :, None], k0[:, None, :], k1[:, None, :]
    least, most = q0 // band.chunk - k1 // band.chunk, q1 // band.chunk - k0 // band.chunk
    some, every = torch.ones_like(least, dtype=torch.bool), torch.ones_like(least, dtype=torch.bool)
    bounds = (
        (band.nearest, most, least, True),
        (band.farthest, least, most, False),
        (band.rows_from, q1, q0, True),
        (band.rows_until, q0, q1, False),
        (band.keys_until, k0, k1, False),
    )
    for bound, easiest, hardest, from_below in bounds:
        if bound is not None:
            some = some & (easiest >= bound if from_below else easiest < bound)
            every = every & (hardest >= bound if from_below else hardest < bound)
    return Tiles(some[:, None], every[:, None])


def tensor_tiles(mask: Tensor, size: tuple[int, int] = SIZE) -> Tiles:
    """Tiles of a dense mask, bool ``[batch or 1, heads or 1, query, key]``."""
    padded = torch.nn.functional.pad(mask, (0, -mask.shape[3] % size[1], 0, -mask.shape[2] % size[0]))
    pairs = padded.unflatten(3, (-1, size[1])).unflatten(2, (-1, size[0]))  # batch, heads, tile, row, tile, key
    return Tiles(pairs.any(5).any(3), pairs.all(5).all(3))


def block_mask_tiles(mask: BlockMask) -> Tiles:
    """Tiles of a block mask of flex attention."""
    width = mask.kv_indices.shape[-1]
    partial = as_flags(mask.kv_num_blocks, mask.kv_indices, width)
    if mask.full_kv_num_blocks is None:
        return Tiles(partial, torch.zeros_like(partial))
    full = as_flags(mask.full_kv_num_blocks, mask.full_kv_indices, width)  # type: ignore[arg-type]
    return Tiles(partial | full, full)


def block_mask(tiles: Tiles, visible: object, lengths: tuple[int, int], size: tuple[int, int] = SIZE) -> BlockMask:
    """Make the block mask of flex attention.

    Args:
        tiles: the tiles to visit.
        visible: function of ``(batch, head, query index, key index)``, True for visible pairs; called in partial tiles.
        lengths: numbers of queries and keys.
        size: rows and keys of a tile.
    """
    every = tiles.every.clone()
    for axis, length, step in ((2, lengths[0], size[0]), (3, lengths[1], size[1])):
        if length % step:  # the kernel must mask positions past the end
            every.select(axis, -1).fill_(False)
    partial, full = (as_indices(flags) for flags in (tiles.some & ~every, every))
    return BlockMask.from_kv_blocks(*partial, *full, BLOCK_SIZE=size, mask_mod=visible, seq_lengths=lengths)  # type: ignore[arg-type]


def tile_bounds(positions: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest position of each tile, ``[batch or 1, tile]``."""
    missing = -positions.shape[1] % size
    if missing:
        positions = torch.cat((positions, positions[:, -1:].expand(-1, missing)), dim=1)
    tiles = positions.unflatten(1, (-1, size))
    return tiles.amin(-1), tiles.amax(-1)


def as_flags(count: Tensor, indices: Tensor, width: int) -> Tensor:
    """Flags ``[batch, heads, row, width]``, True at the first ``count`` of ``indices [batch, heads, row, n]``."""
    listed = torch.arange(indices.shape[-1], device=indices.device) < count[..., None]
    flags = torch.zeros((*indices.shape[:-1], width), dtype=torch.int32, device=indices.device)
    return flags.scatter_add_(-1, indices.long(), listed.int()).bool()


def as_indices(flags: Tensor) -> tuple[Tensor, Tensor]:
    """Number of True flags in each row, and the indices of the row with those flags first; both int32."""
    indices = torch.argsort(flags.to(torch.int8), dim=-1, descending=True, stable=True)
    return flags.sum(-1, dtype=torch.int32), indices.to(torch.int32).contiguous()
