"""Masks of flex attention: the caller's mask, causality, a window and the band of a region, as one `BlockMask`.

A mask of users who chose flex attention comes from transformers as a `BlockMask`; elsewhere it is bool, or none.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flex_block_mask
from hf_posenc.core.regions import EVERYTHING, Band

Mask = BlockMask | Tensor | None


def mask_of(call: AttentionCall, mask: Mask, band: Band) -> BlockMask | None:
    """The caller's mask with a window and a band on top of it; made once per forward pass and shared by the layers."""
    bands = tuple(b for b in (call.terms.visible, band) if b != EVERYTHING)
    if isinstance(mask, BlockMask) and not bands:
        return mask
    if mask is None and not bands and not call.ctx.causal:
        return None
    key = ("flex mask", bands, None if mask is None else id(mask), call.query_length, call.key_length)
    return call.ctx.once(key, lambda: _masked(call, mask, bands))


def _masked(call: AttentionCall, mask: Mask, bands: tuple[Band, ...]) -> BlockMask:
    size = mask.BLOCK_SIZE if isinstance(mask, BlockMask) else flex_block_mask.SIZE
    query, key, device = call.ctx.query_positions, call.ctx.key_positions, call.values.device
    held = [flex_block_mask.of_band(band, query, key, size) for band in bands]
    by_index = mask is None and call.ctx.causal  # not by position: positions given by the caller may restart
    first = number(call.first_query, device)
    if isinstance(mask, BlockMask):
        held.append(flex_block_mask.of_block_mask(mask))
    elif mask is not None:
        mask = mask[..., : call.key_length].expand(-1, -1, call.query_length, -1)
        held.append(flex_block_mask.of_tensor(mask, size))
    elif by_index:
        rows, columns = torch.arange(call.query_length, device=device), torch.arange(call.key_length, device=device)
        held.append(flex_block_mask.of_band(Band(0, None), (rows + first)[None], columns[None], size))
    batch = call.values.shape[0]
    here, there = query.expand(batch, -1), key.expand(batch, -1)
    seen = None if mask is None else (mask.mask_mod if isinstance(mask, BlockMask) else looked_up(mask, batch))

    def pair(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        inside = q + first >= kv if by_index else q >= 0
        for band in bands:
            inside = inside & band.holds(here[b, q], there[b, kv])
        return inside if seen is None else inside & seen(b, h, q, kv)

    both = held[0]
    for one in held[1:]:
        both = both & one
    return flex_block_mask.block_mask(both, pair, (call.query_length, call.key_length), size)


def looked_up(mask: Tensor, batch: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """A mask ``[batch or 1, 1, query, key]`` as a function of one pair."""
    held = mask.expand(batch, -1, -1, -1)

    def seen(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return held[b, 0, q, kv]

    return seen


def number(value: int, device: torch.device) -> Tensor:
    """A whole number as a tensor without dimensions, written by the device itself."""
    return torch.full((), value, dtype=torch.long, device=device)
