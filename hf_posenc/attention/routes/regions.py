"""Regions of query-key pairs with remapped positions: kernel calls on causal squares and rectangles of each region.

They are merged by log-sum-exp. A decode query has one slice of keys in each region.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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
    if call.query_length == 1:
        return partial(merge.attend, [PartialAttention(n, slice(0, 1), keys) for n, keys in seen_by_newest(call)])
    start, device = start_of(call), call.values.device
    by_window = by_device.on_cuda(device)
    cuts = [
        part
        for number, band in enumerate(bands_of(call))
        for part in cut_of(band, by_window=by_window)(number, band, start, call.key_length, device)  # type: ignore[misc]
    ]
    if call.first_query > 0:
        cuts = list(of_last_rows(cuts, call.first_query))
    return partial(merge.attend, cuts)


ROUTE = Route("regions", accepts, prepare)
