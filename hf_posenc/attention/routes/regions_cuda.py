"""Regions on CUDA: torch's own kernels on causal squares and rectangles, merged by log-sum-exp.

A band next to the diagonal needs no mask: shifted by its nearest distance it is a causal square with a window.

    nearest ≤ i − j < farthest   =   rows nearest …, keys … length − nearest, causal, window farthest − nearest
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from hf_posenc.attention import merge
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import by_device
from hf_posenc.attention.merge import PartialAttention
from hf_posenc.attention.route import Route
from hf_posenc.attention.routes.band_cuts import (
    bands_of,
    by_distance,
    by_window,
    can_cut,
    cut_of,
    keys_of_row,
    one_start,
    start_of,
)
from hf_posenc.core.regions import Band


def accepts(call: AttentionCall) -> bool:
    """The calls of the CPU route, on devices whose kernels have windows; also a window alone."""
    return (
        by_device.on_cuda(call.values.device)
        and (call.is_unmasked_square or call.is_decode)
        and call.ctx.causal
        and (
            call.terms.only("regions", "sink") or (call.terms.only("visible", "sink") and by_window(call.terms.visible))
        )
        and can_cut(call.terms.regions)
        and (by_distance(call.terms.regions) or one_start(call))
        and by_device.usable(call.queries[0], call.keys[0], call.values)
    )


def attend(call: AttentionCall) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    scale = call.scaling * call.terms.logit_scale
    cuts = list(decode_cuts(call) if call.is_decode and call.key_length > 1 else prefill_cuts(call))
    return merge.attend(call.queries, call.keys, call.values, cuts, scale, call.terms.sink)


def prefill_cuts(call: AttentionCall) -> Iterator[PartialAttention]:
    """The partials of a prefill."""
    start = start_of(call)
    for number, band in enumerate(bands_of(call)):
        if band == Band(band.nearest, band.farthest):
            yield from windowed(number, band, call.key_length)
        else:
            cut = cut_of(band)
            yield from cut(number, band, start, call.key_length, call.ctx.device)  # type: ignore[misc]


def windowed(number: int, band: Band, length: int) -> Iterator[PartialAttention]:
    """A band next to the diagonal, or all pairs from some distance on."""
    nearest = max(0, band.nearest or 0)
    if length <= nearest or (band.farthest is not None and band.farthest <= nearest):
        return
    bounded = band.farthest is not None and band.farthest < length
    window = band.farthest - nearest if bounded else None  # type: ignore[operator]
    yield PartialAttention(number, slice(nearest, length), slice(0, length - nearest), True, window)


def decode_cuts(call: AttentionCall) -> Iterator[PartialAttention]:
    """The slice of keys visible to a decode query in each region."""
    start = start_of(call)
    for number, band in enumerate(bands_of(call)):
        seen = keys_of_row(band, start, call.key_length - 1)
        if seen.stop > seen.start:
            yield PartialAttention(number, slice(0, 1), seen)


ROUTE = Route("regions_cuda", accepts, attend)
