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
    dense_blocks,
    flex_cuda,
    key_bias,
    length_rotation,
    regions,
    sliding_window,
    toeplitz_bias,
    unpadded,
)
from hf_posenc.core.tracing import is_traced

ROUTES = {
    candidate.name: candidate
    for candidate in (
        length_rotation.ROUTE,
        content_bias.ROUTE,
        decode.ROUTE,
        key_bias.ROUTE,
        toeplitz_bias.ROUTE,
        regions.ROUTE,
        flex_cuda.ROUTE,
        sliding_window.ROUTE,
        dense_blocks.ROUTE,
    )
}
"""All routes, in the order in which they are tried."""


def route(call: AttentionCall) -> str:
    """Name of the route that will compute the call."""
    return next(name for name, candidate in ROUTES.items() if candidate.accepts(call))  # the last accepts every call


def rotates_keys_at_read(call: AttentionCall) -> bool:
    """Whether the route of a call reads keys with `AttentionCall.keys_of`, and so needs no rotated copy of all keys."""
    if is_traced() or torch.is_grad_enabled() or call.query_length != 1 or call.softcap is not None:
        return False
    return route(call) == decode.ROUTE.name  # other routes read `keys`, which must be rotated before


def prepare(call: AttentionCall) -> Compute:
    """Choose the route of a call, and precompute what is the same in all layers.

    Returns:
        A function that computes calls with equal terms, positions, mask and shapes. Only the sinks may differ, as each
        layer may have its own. The function holds no queries, keys or values of ``call``.
    """
    runs = unpadded.runs(call)
    if runs is not None and unpadded.hide_nothing(runs, call):
        compute = _prepare_route(replace(call, mask=None))
        return lambda layer_call: compute(replace(layer_call, mask=None))
    if runs is not None and unpadded.can_split(call):
        return partial(unpadded.attend_runs, runs, compute=_attend_by_route)
    return _prepare_route(call)


def attend(call: AttentionCall) -> Tensor:
    """Attention output ``[batch, heads, query, value_dim]``; outputs at padding are undefined."""
    return prepare(call)(call)


def _prepare_route(call: AttentionCall) -> Compute:
    in_one_block = dense_blocks.in_one_block(call) and call.terms.row_rotation is None
    only_dense = call.softcap is not None or in_one_block  # no other route supports these
    return ROUTES["dense_blocks" if only_dense else route(call)].prepare(call)


def _attend_by_route(call: AttentionCall) -> Tensor:
    return _prepare_route(call)(call)
