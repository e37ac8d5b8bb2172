"""Which route computes a call: the first that accepts it."""

from __future__ import annotations

from torch import Tensor

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.routes import (
    content_bias,
    decode,
    dense_blocks,
    exported,
    flex,
    key_bias,
    length_rotation,
    regions_cpu,
    regions_cuda,
    sliding_window,
    toeplitz_bias,
    unpadded,
)

ROUTES = {
    "rows": (length_rotation.accepts, length_rotation.attend),
    "any length": (exported.accepts, exported.attend),
    "key bias": (key_bias.accepts, key_bias.attend),
    "toeplitz": (toeplitz_bias.accepts, toeplitz_bias.attend),
    "regions": (regions_cpu.accepts, regions_cpu.attend),
    "native": (regions_cuda.accepts, regions_cuda.attend),
    "flex": (flex.accepts, flex.attend_under_tensor),
    "banded": (sliding_window.accepts, sliding_window.attend),
    "content": (content_bias.accepts, content_bias.attend),
    "row": (decode.accepts, decode.attend),
    "blocks": (lambda call: True, dense_blocks.attend_by_blocks),
}


def route(call: AttentionCall) -> str:
    """Name of the route that will compute the call."""
    return next(name for name, (accepts, _) in ROUTES.items() if accepts(call))


def attend(call: AttentionCall) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``; what they are at padding means nothing."""
    by_sample = unpadded.attend(call, _attend)
    return _attend(call) if by_sample is None else by_sample


def _attend(call: AttentionCall) -> Tensor:
    return ROUTES[route(call)][1](call)
