"""Sliding window: each query attends to the keys within a band of distances, and only those are read.

One kernel call for each block of queries and the slice of their visible keys, under one small mask; a decode query sees
all of its slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hf_posenc.attention.call import AttentionCall, unseen_ahead
from hf_posenc.attention.route import Route
from hf_posenc.core.grouped_heads import attend_packed
from hf_posenc.core.regions import EVERYTHING, Band

ROWS = 128  # of 64, 128, 256 the fastest with windows of 256 and of 1024


def accepts(call: AttentionCall) -> bool:
    """A window over a full square, or over a decode query, and no other terms."""
    terms = call.terms
    return (call.is_unmasked_square or call.is_decode) and terms.only("visible") and terms.visible != EVERYTHING


def prepare(call: AttentionCall) -> Callable[[AttentionCall], Tensor]:
    """The function that computes calls with this window."""
    band = unseen_ahead(call.terms.visible, call.ctx.causal)
    if call.is_decode and band.is_of_distances:
        return partial(_decode, band.keys_seen(slice(call.key_length - 1, call.key_length), call.key_length))
    return _by_blocks


def _decode(seen: slice, call: AttentionCall) -> Tensor:
    keys, values = call.keys[0][:, :, seen], call.values[:, :, seen]
    return attend_packed(call.queries[0], keys, values, scale=call.scale)


def _by_blocks(call: AttentionCall) -> Tensor:
    band = unseen_ahead(call.terms.visible, call.ctx.causal)
    mixed = [
        scaled_dot_product_attention(
            call.queries[0][:, :, rows],
            call.keys[0][:, :, seen],
            call.values[:, :, seen],
            attn_mask=mask,
            is_causal=mask is None,
            scale=call.scale,
            enable_gqa=True,
        )
        for rows, seen, mask in blocks_of_band(band, call.query_length, call.key_length, call.ctx.device)
    ]
    return torch.cat(mixed, dim=2)


def blocks_of_band(
    band: Band, queries: int, keys: int, device: torch.device
) -> Iterator[tuple[slice, slice, Tensor | None]]:
    """Blocks of queries, their keys, and the visible pairs, bool ``[rows, keys]``; None for a causal square.

    The queries are the last of the keys. A band with distance 0 includes a query's own key, so no row is empty.
    """
    ahead, done = keys - queries, 0
    if band.nearest == 0 and ahead == 0:
        # The window covers all keys of the first queries, and the kernel's own causality is faster than a mask.
        done = keys if band.farthest is None else min(keys, band.farthest)
        yield slice(0, done), slice(0, done), None
    mask, before = None, None
    for start in range(done, queries, ROWS):
        end = min(start + ROWS, queries)
        seen = band.keys_seen(slice(start + ahead, end + ahead), keys)
        here = (end - start, seen.stop - seen.start, start - seen.start)
        if here != before:  # blocks away from both ends share one mask
            rows = torch.arange(start + ahead, end + ahead, device=device)
            mask, before = band.holds(rows[:, None], torch.arange(seen.start, seen.stop, device=device)), here
        yield slice(start, end), seen, mask


ROUTE = Route("sliding_window", accepts, prepare=prepare)
