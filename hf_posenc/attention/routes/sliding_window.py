"""Sliding window: each query attends to the keys within a band of distances, and only those are read.

Each block of queries is one kernel call with the slice of its visible keys and a small mask.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hf_posenc.attention.call import AttentionCall, causal_band
from hf_posenc.attention.route import Route
from hf_posenc.core.regions import EVERYTHING, Band

ROWS = 128  # of 64, 128, 256 the fastest with windows of 256 and of 1024


def accepts(call: AttentionCall) -> bool:
    """Whether a window is the only term of a full square or a decode query."""
    terms = call.terms
    return (call.is_unmasked_square or call.is_decode) and terms.only("visible") and terms.visible != EVERYTHING


def attend(call: AttentionCall) -> Tensor:
    """Attention output ``[batch, heads, query, value_dim]``."""
    band = causal_band(call.terms.visible, call.ctx.causal)
    outputs = [
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
    return torch.cat(outputs, dim=2)


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
    mask, mask_offsets = None, None
    for start in range(done, queries, ROWS):
        end = min(start + ROWS, queries)
        seen = band.keys_seen(slice(start + ahead, end + ahead), keys)
        offsets = (end - start, seen.stop - seen.start, start - seen.start)
        if offsets != mask_offsets:  # blocks away from both ends share one mask
            rows = torch.arange(start + ahead, end + ahead, device=device)
            mask, mask_offsets = band.holds(rows[:, None], torch.arange(seen.start, seen.stop, device=device)), offsets
        yield slice(start, end), seen, mask


ROUTE = Route("sliding_window", accepts, lambda call: attend)
