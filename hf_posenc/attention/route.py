"""`Route`: one way to compute an attention call. Each module of `hf_posenc.attention.routes` has one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from hf_posenc.attention.call import AttentionCall

Compute = Callable[[AttentionCall], Tensor]  # to mixed values, [batch, heads, query, value_dim]


@dataclass(frozen=True)
class Route:
    """One way to compute a call.

    Attributes:
        name: of its module.
        accepts: whether it can compute a call, and is worth it.
        attend: mixed values of a call; None where it is prepared.
        prepare: the function for calls like one, made once for all layers; None where there is nothing to prepare.
        rotates_at_read: whether it reads keys by `AttentionCall.keys_of`; others take those of each region whole.
    """

    name: str
    accepts: Callable[[AttentionCall], bool]
    attend: Compute | None = None
    prepare: Callable[[AttentionCall], Compute] | None = None
    rotates_at_read: bool = False

    def compute(self, call: AttentionCall) -> Compute:
        """How calls like this one are computed."""
        return self.prepare(call) if self.prepare is not None else self.attend  # type: ignore[return-value]  # has one
