"""Which route computes a call: the first that accepts it."""

from __future__ import annotations

from torch import Tensor

from hf_posenc.attention import (
    any_length,
    banded,
    blocks,
    content,
    flex,
    key_bias,
    native,
    padding,
    regions,
    row,
    rows,
    toeplitz,
)
from hf_posenc.attention.call import Call

ROUTES = {
    "rows": (rows.accepts, rows.attend),
    "any length": (any_length.accepts, any_length.attend),
    "key bias": (key_bias.accepts, key_bias.attend),
    "toeplitz": (toeplitz.accepts, toeplitz.attend),
    "regions": (regions.accepts, regions.attend),
    "native": (native.accepts, native.attend),
    "flex": (flex.accepts, flex.attend_under_tensor),
    "banded": (banded.accepts, banded.attend),
    "content": (content.accepts, content.attend),
    "row": (row.accepts, row.attend),
    "blocks": (lambda call: True, blocks.attend_by_blocks),
}


def route(call: Call) -> str:
    """Name of the route that will compute the call."""
    return next(name for name, (accepts, _) in ROUTES.items() if accepts(call))


def attend(call: Call) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``; what they are at padding means nothing."""
    by_sample = padding.attend(call, _attend)
    return _attend(call) if by_sample is None else by_sample


def _attend(call: Call) -> Tensor:
    return ROUTES[route(call)][1](call)
