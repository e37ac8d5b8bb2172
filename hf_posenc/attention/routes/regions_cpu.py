"""Regions of query-key pairs with remapped positions, on the CPU.

A prefill cuts each region into rectangles for the kernel, and merges them. A decode query that sees one region is a
kernel call, and has otherwise the scores of all under one softmax:

    o = Σ_j softmax_j([q_r(j) · k_j · scale]) v_j        r(j) = the region of key j, one slice of keys each

The query heads that share a key head are rows of one matrix product. That needs the batch and the heads as one axis
without a copy, regions side by side, and scores in float32: other decode queries are one kernel call a region, merged
by log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from hf_posenc.attention import merge
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes.band_cuts import (
    bands_of,
    can_split,
    cut_of,
    of_last_rows,
    seen_by_newest,
    start_of,
)
from hf_posenc.attention.routes.decode import Read, by_reads
from hf_posenc.core.grouped_heads import attend_packed
from hf_posenc.core.regions import EVERYTHING


def accepts(call: AttentionCall) -> bool:
    """A decoder's call on the CPU without gaps, with regions of kinds that can be split and no other terms."""
    alone = call.terms.sink is not None or call.terms.visible == EVERYTHING  # a mere window has a route of its own
    return (
        call.ctx.contiguous
        and call.mask is None
        and call.dropout == 0.0
        and alone
        and can_split(call)
        and flash_cpu.usable(call.queries[0], call.keys[0], call.values)
    )


def prepare(call: AttentionCall) -> Callable[[AttentionCall], Tensor]:
    """The function that computes calls with these regions; they are split here, once for all layers."""
    if call.query_length == 1 and not torch.is_grad_enabled():
        return prepare_decode(call)
    start, length, device = start_of(call), call.key_length, call.ctx.device
    cuts = [
        part
        for number, band in enumerate(bands_of(call))
        for part in cut_of(band)(number, band, start, length, device)  # type: ignore[misc]
    ]
    if call.first_query > 0:
        cuts = list(of_last_rows(cuts, call.first_query))
    return partial(merge.attend, cuts)


Seen = list[tuple[int, slice]]


def prepare_decode(call: AttentionCall) -> Callable[[AttentionCall], Tensor]:
    """The function that computes decode queries of such calls; what they see is worked out once for all layers."""
    seen, values = sorted(seen_by_newest(call), key=lambda one: one[1].start), call.values
    if len(seen) == 1 and call.terms.sink is None:
        return partial(_by_kernel, *seen[0])
    together = _without_borders(seen)
    fits = values.dtype == torch.float32 and _is_one_axis(values) and _is_one_axis(call.keys[0])
    if together is not None and fits and call.terms.sink is None:
        return partial(_by_product, seen, together)
    return partial(by_reads, [Read(number, keys, None) for number, keys in seen])


def _without_borders(seen: Seen) -> slice | None:
    """The keys of all regions as one slice; None where one does not begin where the last one ended."""
    if not seen:
        return None
    start = stop = seen[0][1].start
    for _, keys in seen:
        if keys.start != stop:
            return None
        stop = keys.stop
    return slice(start, stop)


def _is_one_axis(held: Tensor) -> bool:
    """Whether the batch and the heads of ``[batch, kv_heads, key, dim]`` are one axis without a copy."""
    return len(held) == 1 or held.stride(0) == held.shape[1] * held.stride(1)


def _by_kernel(number: int, keys: slice, call: AttentionCall) -> Tensor:
    held = call.keys_of(number, keys)
    return attend_packed(call.queries[number], held, call.values[:, :, keys], scale=call.scale)


def _by_product(seen: Seen, keys: slice, call: AttentionCall) -> Tensor:
    query, (batch, kv_heads, _, dim) = call.queries[0], call.values.shape
    if call.at_read:
        read = [call.keys_of(number, some) for number, some in seen]
    else:  # the same without a function call, of which every layer has as many as it has regions
        read = [call.keys[number][:, :, some] for number, some in seen]
    one_axis = batch * kv_heads  # of a batch of matrices, which costs less to call than one with two axes
    scores = [
        torch.bmm(call.queries[number].reshape(one_axis, -1, dim), held.flatten(0, 1).mT)
        for (number, _), held in zip(seen, read, strict=True)
    ]
    weights = torch.cat(scores, dim=-1).mul_(call.scale).softmax(-1)
    return torch.bmm(weights, call.values[:, :, keys].flatten(0, 1)).view(query.shape)


ROUTE = Route("regions_cpu", accepts, prepare=prepare, rotates_at_read=True)
