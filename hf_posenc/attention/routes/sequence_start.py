"""The position of the first key of a call, for bands that depend on it."""

from __future__ import annotations

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.routes.band_cuts import by_distance
from hf_posenc.core.tracing import is_traced


def one_start(call: AttentionCall) -> bool:
    """Whether the first position is known and the same in all rows of the batch."""
    if is_traced():
        return False
    first = call.ctx.key_positions[:, 0]
    return len(first) == 1 or bool((first == first[0]).all())


def start_of(call: AttentionCall) -> int:
    """Position of the first key; 0 where nothing depends on it."""
    return 0 if by_distance(call.terms.regions) else first_key(call)


def first_key(call: AttentionCall) -> int:
    """Position of the first key; read from the device where the call does not know it."""
    known = call.ctx.first_key
    if known is not None:
        return known
    return call.ctx.once("position of the first key", lambda: int(call.ctx.key_positions[0, 0]))
