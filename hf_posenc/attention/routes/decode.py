"""Route of a decode query: one kernel call a region, under any mask; a mask for one query is cheap.

    o = Σ_r e^(lse_r − lse) o_r,   lse = log(Σ_r e^lse_r + e^sink)

Padding, evicted keys, windows and sums of biases all become that mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from hf_posenc.attention import merge
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes.dense_blocks import pairs_in_band, visibility
from hf_posenc.attention.routes.key_bias import counted_from
from hf_posenc.core.grouped_heads import packed_mask
from hf_posenc.core.regions import Region
from hf_posenc.core.terms import BlockBias, KeyBias, ToeplitzBias
from hf_posenc.core.tracing import is_traced

HIDDEN = torch.finfo(torch.float32).min


class Read(NamedTuple):
    """One kernel call: a region, the columns of its keys, and what is added to the scores, a `packed_mask`."""

    region: int
    columns: slice
    mask: Tensor | None


def accepts(call: AttentionCall) -> bool:
    """One new token on the CPU, at any positions, with biases of keys and distances."""
    terms = call.terms
    return (
        call.query_length == 1
        and call.dropout == 0.0
        and not any(isinstance(bias, BlockBias) for bias in terms.bias)
        and terms.only("bias", "visible", "regions", "sink")
        and not torch.is_grad_enabled()
        and not is_traced()
        and flash_cpu.usable(call.queries[0], call.keys[0], call.values)
    )


def prepare(call: AttentionCall) -> Callable[[AttentionCall], Tensor]:
    """The function that computes calls with these terms and this mask, which are read once for all layers."""
    return partial(by_reads, list(_reads(call)))


def _reads(call: AttentionCall) -> Iterator[Read]:
    """The kernel calls that read all keys visible in some sample."""
    terms = call.terms
    every, added = visibility(call, slice(0, 1))
    for number, region in enumerate(terms.regions):
        seen = every & pairs_in_band(region.band, call, slice(0, 1)) if terms.split else every
        columns = _columns(seen)
        if columns.stop > 0:
            mask = _mask(call, region, seen, added, columns)
            packed = None if mask is None else packed_mask(mask, call.queries[0], call.keys[0].shape[1])
            yield Read(number, columns, packed)


def by_reads(reads: list[Read], call: AttentionCall) -> Tensor:
    """Mixed values ``[batch, heads, 1, value_dim]`` of kernel calls that are merged."""
    query, sink, scale = call.queries[0], call.terms.sink, call.scale
    out, lse = None, None
    for number, columns, mask in reads:
        keys, values = call.keys_of(number, columns), call.values[:, :, columns]
        more, more_lse = flash_cpu.attend_rows(call.queries[number], keys, values, mask, scale)
        if out is None or lse is None:
            out, lse = more.float(), more_lse
        else:
            merge.merge_into(out, lse, more, more_lse)
    if out is None or lse is None:
        return torch.zeros_like(query)
    if sink is not None:
        out, _ = merge.with_sink(out, lse, sink)
    return out.to(query.dtype)


def _columns(seen: Tensor) -> slice:
    """From the first to the last key visible in some sample; empty where there is none."""
    anyone = seen.flatten(0, -2).any(0).nonzero()
    return slice(int(anyone[0]), int(anyone[-1]) + 1) if len(anyone) else slice(0, 0)


def _mask(call: AttentionCall, region: Region, seen: Tensor, added: Tensor | float, columns: slice) -> Tensor | None:
    """Biases and masked keys, float32, broadcasts to ``[batch, heads, 1, columns]``; None where there is neither."""
    total: Tensor | float = added[..., columns].float() if isinstance(added, Tensor) else added
    index = slice(call.first_query, call.first_query + 1)
    here, there = region.query_at(call.ctx.query_positions), region.key_at(call.ctx.key_positions)
    distance = here[:, :, None] - there[:, None, columns]
    for bias in call.terms.bias:
        if isinstance(bias, KeyBias):
            total = total + counted_from(bias.values, index)[..., columns] * call.terms.logit_scale
        elif isinstance(bias, ToeplitzBias):
            total = total + bias.of_distance(distance).transpose(0, 1).float() * call.terms.logit_scale
    seen = seen[..., columns]
    if not bool(seen.all()):
        total = torch.zeros(seen.shape, device=seen.device) + total if not isinstance(total, Tensor) else total
        return total.masked_fill(~seen, HIDDEN)
    return total if isinstance(total, Tensor) else None


ROUTE = Route("decode", accepts, prepare=prepare, rotates_at_read=True)
