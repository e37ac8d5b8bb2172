"""Choose the route that computes a call: the first that accepts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hf_posenc.attention.call import AttentionCall
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

Compute = Callable[[AttentionCall], Tensor]

# Route names are module names. The first route that accepts a call computes it.
ROUTES = {
    "length_rotation": (length_rotation.accepts, length_rotation.attend),
    "exported": (exported.accepts, exported.attend),
    "key_bias": (key_bias.accepts, key_bias.attend),
    "toeplitz_bias": (toeplitz_bias.accepts, toeplitz_bias.attend),
    "regions_cpu": (regions_cpu.accepts, regions_cpu.attend),
    "regions_cuda": (regions_cuda.accepts, regions_cuda.attend),
    "decode_cuda": (decode_cuda.accepts, decode_cuda.attend),
    "flex_cuda": (flex_cuda.accepts, flex_cuda.attend),
    "sliding_window": (sliding_window.accepts, sliding_window.attend),
    "content_bias": (content_bias.accepts, content_bias.attend),
    "decode": (decode.accepts, decode.attend),
    "dense_blocks": (lambda call: True, dense_blocks.attend),
}

# Routes that work something out once for all layers.
PREPARE: dict[str, Callable[[AttentionCall], Compute]] = {
    "key_bias": key_bias.prepare,
    "regions_cpu": regions_cpu.prepare,
    "sliding_window": sliding_window.prepare,
    "decode": decode.prepare,
}

# Routes of decode queries that rotate the keys they read, and no others.
ROTATE_AT_READ = ("regions_cpu", "decode")


def route(call: AttentionCall) -> str:
    """Name of the route that will compute the call."""
    for name, (accepts, _) in ROUTES.items():
        if accepts(call):
            return name
    raise AssertionError("the last route accepts every call")


def rotates_at_read(call: AttentionCall) -> bool:
    """Whether the route of a call reads keys by `AttentionCall.keys_of`; others take those of each region whole."""
    if is_traced() or torch.is_grad_enabled() or call.query_length != 1 or call.softcap is not None:
        return False
    return route(call) in ROTATE_AT_READ


def prepare(call: AttentionCall) -> Compute:
    """Choose how to compute a call, and precompute what calls with equal terms, positions, mask and shapes share.

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
    return PREPARE[name](call) if name in PREPARE else ROUTES[name][1]


def _attend(call: AttentionCall) -> Tensor:
    return _prepared(call)(call)


def _unmasked(compute: Compute, call: AttentionCall) -> Tensor:
    return compute(replace(call, mask=None))
