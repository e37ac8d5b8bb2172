"""`Route`: one way to compute an attention call. Each module of `hf_posenc.attention.routes` has one."""

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
        attend: computes the output of a call; None for a route with ``prepare``.
        prepare: returns the function that computes calls like its argument, once for all layers; None for a route with
            ``attend``.
        rotates_at_read: whether the route reads keys with `AttentionCall.keys_of`. Other routes read ``keys``, which
            must be rotated before.
    """

    name: str
    accepts: Callable[[AttentionCall], bool]
    attend: Compute | None = None
    prepare: Callable[[AttentionCall], Compute] | None = None
    rotates_at_read: bool = False

    def compute(self, call: AttentionCall) -> Compute:
        """The function that computes calls like this one."""
        return self.prepare(call) if self.prepare is not None else self.attend  # type: ignore[return-value]  # one of them is set
