"""Visible pairs of queries and keys: what a mask, causality, a window and regions show, as dense booleans."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import NamedTuple

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.core.regions import Band
from hf_posenc.core.tracing import is_traced


class Pairs(NamedTuple):
    """Visibility of the pairs of a block, the same in all layers. Each tensor broadcasts to ``[batch, 1, rows, key]``.

    Attributes:
        claims: bool, the pairs of each region, by its number. Regions without a visible pair may be left out.
        seen: bool, the visible pairs.
        added: values that a float mask adds to the logits; None without such a mask.
    """

    claims: dict[int, Tensor]
    seen: Tensor
    added: Tensor | None


def pairs_of(call: AttentionCall, rows: slice) -> Pairs:
    """Visible pairs of some queries, and the region of each pair."""
    claims = {number: pairs_in_band(region.band, call, rows) for number, region in enumerate(call.terms.regions)}
    seen, added = visibility(call, rows)
    seen = seen & reduce(or_, claims.values()) if call.terms.split else seen
    on_cpu = call.values.device.type == "cpu"
    if len(claims) > 1 and on_cpu and not (call.terms.values or is_traced() or torch.is_grad_enabled()):
        # A text shorter than the window needs the scores of one region only. Other devices would have to synchronise.
        claims = {number: pairs for number, pairs in claims.items() if bool((pairs & seen).any())} or {0: claims[0]}
    return Pairs(claims, seen, added)


def pairs_in_band(band: Band, call: AttentionCall, rows: slice) -> Tensor:
    """True for the pairs of some queries that are in a band, bool ``[batch or 1, 1, rows, key]``."""
    return band.holds(call.ctx.query_positions[:, rows, None], call.ctx.key_positions[:, None, :])[:, None]


def visibility(call: AttentionCall, rows: slice) -> tuple[Tensor, Tensor | None]:
    """Visible pairs, bool, broadcast to ``[batch, 1, rows, key]``; and what a float mask adds to logits, or None."""
    seen = pairs_in_band(call.terms.visible, call, rows)
    mask = call.mask_of(rows)
    if mask is None:
        return seen & call.causal_mask(rows) if call.ctx.causal else seen, None
    mask = mask[..., : seen.shape[-1]]
    if mask.dtype == torch.bool:
        return seen & mask, None
    hidden = mask <= torch.finfo(mask.dtype).min
    return seen & ~hidden, mask.masked_fill(hidden, 0.0)
