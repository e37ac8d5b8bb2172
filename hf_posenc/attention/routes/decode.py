"""Route of a decode query: one kernel call per region, under any mask, because a mask for one query is cheap.

    o = Σ_r e^(lse_r − lse) o_r,   lse = log(Σ_r e^lse_r + e^sink)

Padding, evicted keys, windows and biases all become part of that mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from hf_posenc.attention import merge
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes.key_bias import relative_to
from hf_posenc.attention.visible_pairs import pairs_in_band, visibility
from hf_posenc.core.grouped_heads import packed_mask
from hf_posenc.core.regions import Region
from hf_posenc.core.terms import BlockBias, KeyBias, ToeplitzBias
from hf_posenc.core.tracing import is_traced

HIDDEN = torch.finfo(torch.float32).min


class Read(NamedTuple):
    """One kernel call: a region, the columns of its keys, and a `packed_mask` that is added to the scores, or None."""

    region: int
    columns: slice
    mask: Tensor | None


def accepts(call: AttentionCall) -> bool:
    """Whether the call is one new token on the CPU without gradients; its biases are of keys and distances."""
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
    """The function that computes calls with these terms and this mask; both are evaluated once for all layers."""
    return partial(attend_reads, list(_reads(call)))


def _reads(call: AttentionCall) -> Iterator[Read]:
    """The kernel calls that together read every key visible in some sample."""
    terms = call.terms
    visible, added = visibility(call, slice(0, 1))
    for number, region in enumerate(terms.regions):
        seen = visible & pairs_in_band(region.band, call, slice(0, 1)) if terms.split else visible
        columns = _columns(seen)
        if columns.stop > 0:
            mask = _mask(call, region, seen, added, columns)
            packed = None if mask is None else packed_mask(mask, call.queries[0], call.keys[0].shape[1])
            yield Read(number, columns, packed)


def attend_reads(reads: list[Read], call: AttentionCall) -> Tensor:
    """Attention output ``[batch, heads, 1, value_dim]`` merged from several kernel calls."""
    parts = []
    for number, columns, mask in reads:
        keys, values = call.keys_of(number, columns), call.values[:, :, columns]
        parts.append(flash_cpu.attend_rows(call.queries[number], keys, values, mask, call.scale))
    if not parts:
        return torch.zeros_like(call.queries[0])
    (out, lse), *others = parts
    out = out.float()
    for part, part_lse in others:
        merge.merge_into(out, lse, part, part_lse)
    if call.terms.sink is not None:
        out, _ = merge.with_sink(out, lse, call.terms.sink)
    return out.to(call.values.dtype)


def _columns(seen: Tensor) -> slice:
    """Slice from the first to the last key visible in some sample; empty if none is."""
    indices = seen.flatten(0, -2).any(0).nonzero()
    return slice(int(indices[0]), int(indices[-1]) + 1) if len(indices) else slice(0, 0)


def _mask(call: AttentionCall, region: Region, seen: Tensor, added: Tensor | None, columns: slice) -> Tensor | None:
    """Biases and hidden keys as a mask, float32, broadcasts to ``[batch, heads, 1, columns]``; None if it is zero."""
    parts = [] if added is None else [added[..., columns].float()]
    index = slice(call.first_query, call.first_query + 1)
    query, keys = region.query_at(call.ctx.query_positions), region.key_at(call.ctx.key_positions)
    distance = query[:, :, None] - keys[:, None, columns]
    for bias in call.terms.bias:
        if isinstance(bias, KeyBias):
            parts.append(relative_to(bias.values, index)[..., columns] * call.terms.logit_scale)
        elif isinstance(bias, ToeplitzBias):
            parts.append(bias.of_distance(distance).transpose(0, 1).float() * call.terms.logit_scale)
    seen = seen[..., columns]
    if bool(seen.all()):
        return reduce(torch.add, parts) if parts else None
    parts = parts or [torch.zeros(seen.shape, device=seen.device)]
    return reduce(torch.add, parts).masked_fill(~seen, HIDDEN)


ROUTE = Route("decode", accepts, prepare, rotates_keys_at_read=True)
