"""Choose the route that computes a call: the first that accepts it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.route import Compute
from hf_posenc.attention.routes import (
    content_bias,
    decode,
    decode_cuda,
    dense_blocks,
    exported,
    flex_cuda,
    key_bias,
    length_rotation,
    regions_cpu,
    regions_cuda,
    sliding_window,
    toeplitz_bias,
    unpadded,
)
from hf_posenc.core.tracing import is_traced

ROUTES = {
    one.name: one
    for one in (
        length_rotation.ROUTE,
        exported.ROUTE,
        content_bias.ROUTE,
        key_bias.ROUTE,
        toeplitz_bias.ROUTE,
        regions_cpu.ROUTE,
        regions_cuda.ROUTE,
        decode_cuda.ROUTE,
        flex_cuda.ROUTE,
        sliding_window.ROUTE,
        decode.ROUTE,
        dense_blocks.ROUTE,
    )
}
"""In the order in which they are asked."""


def route(call: AttentionCall) -> str:
    """Name of the route that will compute the call."""
    return next(name for name, one in ROUTES.items() if one.accepts(call))  # the last one accepts every call


def rotates_at_read(call: AttentionCall) -> bool:
    """Whether the route of a call reads keys by `AttentionCall.keys_of`; others take those of each region whole."""
    if is_traced() or torch.is_grad_enabled() or call.query_length != 1 or call.softcap is not None:
        return False
    return ROUTES[route(call)].rotates_at_read


def prepare(call: AttentionCall) -> Compute:
    """Choose how to compute a call, and precompute what calls with equal terms, positions, mask and shapes share.

    Sinks may differ: a layer may have one of its own.

    Returns:
        A function from such a call to its mixed values. It keeps no queries, keys and values of ``call``.
    """
    runs = unpadded.runs(call)
    if runs is not None and unpadded.hide_nothing(runs, call):
        return partial(_unmasked, _prepared(replace(call, mask=None)))
    if runs is not None and unpadded.can_split(call):
        return partial(unpadded.attend_runs, runs, compute=_attend)
    return _prepared(call)


def attend(call: AttentionCall) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``; values at padding are undefined."""
    return prepare(call)(call)


def _prepared(call: AttentionCall) -> Compute:
    name = route(call) if call.softcap is None else "dense_blocks"  # the only route with a softcap
    return ROUTES[name].compute(call)


def _attend(call: AttentionCall) -> Tensor:
    return _prepared(call)(call)


def _unmasked(compute: Compute, call: AttentionCall) -> Tensor:
    return compute(replace(call, mask=None))
