"""Regions of query-key pairs with remapped positions: cut each into rectangles for the kernel, and merge them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from hf_posenc.attention import merge
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.merge import PartialAttention
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes import regions_decode
from hf_posenc.attention.routes.band_cuts import by_distance, can_cut, cut_of, of_last_rows
from hf_posenc.attention.routes.sequence_start import one_start, start_of


def accepts(call: AttentionCall) -> bool:
    """A decoder's call on the CPU without gaps, with regions of kinds that can be split and no other terms."""
    regions = call.terms.regions
    return (
        call.ctx.contiguous
        and call.mask is None
        and call.dropout == 0.0
        and call.ctx.causal
        and call.terms.only("regions")
        and can_cut(regions)
        and (by_distance(regions) or one_start(call))
        and flash_cpu.usable(call.queries[0], call.keys[0], call.values)
    )


def attend(call: AttentionCall) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    return prepare(call)(call)


def prepare(call: AttentionCall) -> Callable[[AttentionCall], Tensor]:
    """The function that computes calls with these regions; they are split here, once for all layers."""
    if call.query_length == 1 and not torch.is_grad_enabled():
        return regions_decode.prepare(call)
    start, length, device = start_of(call), call.key_length, call.ctx.device
    cuts = [
        part
        for number, region in enumerate(call.terms.regions)
        for part in cut_of(region.band)(number, region.band, start, length, device)  # type: ignore[misc]
    ]
    if call.first_query > 0:
        cuts = list(of_last_rows(cuts, call.first_query))
    return partial(_merged, cuts, call.terms.logit_scale)


def _merged(cuts: list[PartialAttention], logit_scale: float, call: AttentionCall) -> Tensor:
    return merge.attend(call.queries, call.keys, call.values, cuts, call.scaling * logit_scale)


ROUTE = Route("regions_cpu", accepts, attend, prepare, rotates_at_read=True)
