"""Regions of query-key pairs with remapped positions: kernel calls on causal squares and rectangles of each region.

They are merged by log-sum-exp. A decode query has one slice of keys in each region. On the CPU, one that sees a single
region is torch's own attention; one that sees several has the scores of all regions under one softmax:

    o = Σ_j softmax_j([q_r(j) · k_j · scale]) v_j        r(j) = the region of key j; a region is a slice of keys

The query heads that share a key head are rows of one matrix product. For this, batch and heads must be one axis without
a copy, the regions must be adjacent, and the scores float32. Other decode queries take one kernel call per region,
merged by log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from hf_posenc.attention import merge
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import by_device
from hf_posenc.attention.merge import PartialAttention
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes.band_cuts import (
    bands_of,
    can_split,
    cut_of,
    of_last_rows,
    seen_by_newest,
    start_of,
)
from hf_posenc.attention.routes.decode import Read, attend_reads
from hf_posenc.core.grouped_heads import attend_packed
from hf_posenc.core.regions import EVERYTHING


def accepts(call: AttentionCall) -> bool:
    """Whether a decoder's call has no mask or dropout, and regions that can be cut as its only terms.

    On CUDA a window counts as a region, and a chunk of a text is no call for this route.
    """
    if by_device.on_cuda(call.values.device):
        fits = call.is_unmasked_square or call.is_decode
    else:  # not just a window: `sliding_window`
        fits = call.is_unmasked_suffix and (call.terms.sink is not None or call.terms.visible == EVERYTHING)
    return fits and can_split(call) and by_device.usable(call.queries[0], call.keys[0], call.values)


def prepare(call: AttentionCall) -> Callable[[AttentionCall], Tensor]:
    """The function that computes calls with these regions; they are cut here, once for all layers."""
    device = call.values.device
    by_window = by_device.on_cuda(device)
    if call.query_length == 1:
        seen = sorted(seen_by_newest(call), key=lambda item: item[1].start)
        if not by_window and not torch.is_grad_enabled():
            return prepare_decode(seen, call)
        cuts = [PartialAttention(number, slice(0, 1), keys) for number, keys in seen]
        return lambda layer_call: merge.attend(cuts, layer_call.with_rotated_keys())
    start = start_of(call)
    cuts = [
        part
        for number, band in enumerate(bands_of(call))
        for part in cut_of(band, by_window=by_window)(number, band, start, call.key_length, device)  # type: ignore[misc]
    ]
    if call.first_query > 0:
        cuts = list(of_last_rows(cuts, call.first_query))
    return partial(merge.attend, cuts)


Seen = list[tuple[int, slice]]


def prepare_decode(seen: Seen, call: AttentionCall) -> Callable[[AttentionCall], Tensor]:
    """The function that computes decode queries on the CPU, which see these keys of each region."""
    values = call.values
    if len(seen) == 1 and call.terms.sink is None:
        return partial(_by_kernel, *seen[0])
    all_keys = _joined(seen)
    fits = values.dtype == torch.float32 and _is_one_axis(values) and _is_one_axis(call.keys[0])
    if all_keys is not None and fits and call.terms.sink is None:
        return partial(_by_product, seen, all_keys)
    return partial(attend_reads, [Read(number, keys, None) for number, keys in seen])


def _joined(seen: Seen) -> slice | None:
    """The keys of all regions as one slice; None if the regions are not adjacent."""
    if not seen:
        return None
    start = stop = seen[0][1].start
    for _, keys in seen:
        if keys.start != stop:
            return None
        stop = keys.stop
    return slice(start, stop)


def _is_one_axis(tensor: Tensor) -> bool:
    """Whether batch and heads of ``[batch, kv_heads, key, dim]`` can be merged into one axis without a copy."""
    return len(tensor) == 1 or tensor.stride(0) == tensor.shape[1] * tensor.stride(1)


def _by_kernel(number: int, keys: slice, call: AttentionCall) -> Tensor:
    key, value = call.keys_of(number, keys), call.values[:, :, keys]
    return attend_packed(call.queries[number], key, value, scale=call.scale)


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


ROUTE = Route("regions", accepts, prepare, rotates_keys_at_read=True)
