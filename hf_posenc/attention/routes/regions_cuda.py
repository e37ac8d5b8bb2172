"""Regions on CUDA: torch's own kernels on causal squares and rectangles, merged by log-sum-exp.

A band next to the diagonal needs no mask: shifted by its nearest distance, it is a causal square with a window.

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
    can_split,
    cut_of,
    seen_by_newest,
    start_of,
)
from hf_posenc.core.regions import Band


def accepts(call: AttentionCall) -> bool:
    """Whether a decoder's call on CUDA has no mask or dropout, and as terms a window, or regions that can be cut."""
    return (
        by_device.on_cuda(call.values.device)
        and (call.is_unmasked_square or call.is_decode)
        and can_split(call)
        and by_device.usable(call.queries[0], call.keys[0], call.values)
    )


def attend(call: AttentionCall) -> Tensor:
    """Attention output ``[batch, heads, query, value_dim]``."""
    if call.is_decode and call.key_length > 1:
        return merge.attend([PartialAttention(n, slice(0, 1), keys) for n, keys in seen_by_newest(call)], call)
    return merge.attend(list(prefill_cuts(call)), call)


def prefill_cuts(call: AttentionCall) -> Iterator[PartialAttention]:
    """The partials of a prefill."""
    start = start_of(call)
    for number, band in enumerate(bands_of(call)):
        if band.is_of_distances:
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


ROUTE = Route("regions_cuda", accepts, lambda call: attend)
