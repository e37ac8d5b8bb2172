"""`Route`: one way to compute an attention call, which a module of `hf_posenc.attention.routes` defines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from hf_posenc.attention.call import AttentionCall

Compute = Callable[[AttentionCall], Tensor]  # returns the output, [batch, heads, query, value_dim]


@dataclass(frozen=True)
class Route:
    """One way to compute a call.

    Attributes:
        name: name of the route's module.
        accepts: whether the route can compute a call, and is a good choice for it.
        prepare: returns the function that computes calls like its argument; it is called once for all layers.
    """

    name: str
    accepts: Callable[[AttentionCall], bool]
    prepare: Callable[[AttentionCall], Compute]
