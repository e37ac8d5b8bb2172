"""Route of a decode query on the CPU: one kernel call per region, under any mask, as a mask for one query is cheap.

    o = Σ_r e^(lse_r − lse) o_r,   lse = log(Σ_r e^lse_r + e^sink)

Padding, evicted keys, windows and biases all become part of that mask. Without them, each region is a slice of keys. A
query that sees a single region is torch's own attention. One that sees several has their scores under one softmax:

    o = Σ_j softmax_j([q_r(j) · k_j · scale]) v_j        r(j) = the region of key j

The query heads that share a key head are rows of one matrix product. For this, batch and heads must be one axis without
a copy, the regions must be adjacent, and the scores float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from hf_posenc.attention import merge
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes.band_cuts import can_split, seen_by_newest
from hf_posenc.attention.routes.key_bias import relative_to
from hf_posenc.attention.visible_pairs import pairs_in_band, visibility
from hf_posenc.core.grouped_heads import attend_packed, packed_mask
from hf_posenc.core.regions import Region
from hf_posenc.core.terms import BlockBias, KeyBias, ToeplitzBias
from hf_posenc.core.tracing import is_traced

HIDDEN = torch.finfo(torch.float32).min


Seen = list[tuple[int, slice]]  # number of each region and its keys


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
    if call.terms.bias or not (call.is_decode and can_split(call)):
        reads, every = list(_reads(call)), [slice(0, call.key_length)]
        if [read.columns for read in reads] == every and call.terms.sink is None and not call.at_read:
            return partial(_by_mask, reads[0].region, reads[0].mask)
        return partial(attend_reads, reads)
    seen, values = sorted(seen_by_newest(call), key=lambda item: item[1].start), call.values
    if len(seen) == 1 and call.terms.sink is None:
        return partial(_by_kernel, *seen[0])
    all_keys = _joined(seen)
    fits = values.dtype == torch.float32 and _is_one_axis(values) and _is_one_axis(call.keys[0])
    if all_keys is not None and fits and call.terms.sink is None:
        return partial(_by_product, seen, all_keys)
    return partial(attend_reads, [Read(number, keys, None) for number, keys in seen])


def _joined(seen: Seen) -> slice | None:
    """The keys of all regions as one slice; None if the regions are not adjacent."""
    if not seen or any(one.stop != other.start for (_, one), (_, other) in pairwise(seen)):
        return None
    return slice(seen[0][1].start, seen[-1][1].stop)


def _is_one_axis(tensor: Tensor) -> bool:
    """Whether batch and heads of ``[batch, kv_heads, key, dim]`` can be merged into one axis without a copy."""
    return len(tensor) == 1 or tensor.stride(0) == tensor.shape[1] * tensor.stride(1)


def _by_kernel(number: int, keys: slice, call: AttentionCall) -> Tensor:
    key, value = call.keys_of(number, keys), call.values[:, :, keys]
    return attend_packed(call.queries[number], key, value, scale=call.scale)


def _by_mask(number: int, mask: Tensor | None, call: AttentionCall) -> Tensor:
    return flash_cpu.attend_rows(call.queries[number], call.keys[number], call.values, mask, call.scale)[0]


def _by_product(seen: Seen, keys: slice, call: AttentionCall) -> Tensor:
    query, (batch, kv_heads, _, dim) = call.queries[0], call.values.shape
    if call.at_read:
        key = [call.keys_of(number, columns) for number, columns in seen]
    else:  # the same without a function call per region and layer
        key = [call.keys[number][:, :, columns] for number, columns in seen]
    one_axis = batch * kv_heads  # `bmm` is faster to call than a product with two batch axes
    scores = [
        torch.bmm(call.queries[number].reshape(one_axis, -1, dim), region_key.flatten(0, 1).mT)
        for (number, _), region_key in zip(seen, key, strict=True)
    ]
    weights = torch.cat(scores, dim=-1).mul_(call.scale).softmax(-1)
    return torch.bmm(weights, call.values[:, :, keys].flatten(0, 1)).view(query.shape)


def _reads(call: AttentionCall) -> Iterator[Read]:
    """The kernel calls that together read every key visible in some sample."""
    terms = call.terms
    by_slice = call.is_decode and not terms.split and terms.visible.is_of_distances
    visible, added = (None, None) if by_slice else visibility(call, slice(0, 1))
    for number, region in enumerate(terms.regions):
        if visible is None:  # all keys of a slice
            seen, columns = None, terms.visible.keys_seen(slice(call.first_query, call.key_length), call.key_length)
        else:
            seen = visible & pairs_in_band(region.band, call, slice(0, 1)) if terms.split else visible
            columns = _columns(seen)
        if columns.stop > columns.start:
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


def _mask(
    call: AttentionCall, region: Region, seen: Tensor | None, added: Tensor | None, columns: slice
) -> Tensor | None:
    """Biases and hidden keys as a mask, float32, broadcasts to ``[batch, heads, 1, columns]``; None if it is zero."""
    parts = [] if added is None else [added[..., columns].float()]
    for bias in call.terms.bias:
        if isinstance(bias, KeyBias):
            index = slice(call.first_query, call.first_query + 1)
            parts.append(relative_to(bias.values, index, columns) * call.terms.logit_scale)
        elif isinstance(bias, ToeplitzBias):
            query, keys = region.query_at(call.ctx.query_positions), region.key_at(call.ctx.key_positions)
            distance = query[:, :, None] - keys[:, None, columns]
            parts.append(bias.of_distance(distance).transpose(0, 1).float() * call.terms.logit_scale)
    hidden = None if seen is None else ~seen[..., columns]
    if hidden is None or not bool(hidden.any()):
        return reduce(torch.add, parts) if parts else None
    parts = parts or [torch.zeros(hidden.shape, device=hidden.device)]
    return reduce(torch.add, parts).masked_fill(hidden, HIDDEN)


ROUTE = Route("decode", accepts, prepare)
