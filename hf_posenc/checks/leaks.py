"""Check of what stays alive: reading the same again keeps nothing more."""

from __future__ import annotations

import gc
from itertools import pairwise
from statistics import median_low

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.registry import register_check

WARM, ROUNDS = 2, 5  # tables are made once; what is kept of every reading shows in most rounds


@register_check("leaks", costly=True)
def forward_passes_free_memory(pair: Case) -> Deviation:
    """The objects alive are as many after a text was read again.

    The value is how many more there are after a reading, the median of rounds: what another thread makes or
    drops meanwhile shows in one of them.
    """
    with pair.patched() as model:
        tokens = random_tokens(model, pair.length(pair.trained + 1, model))
        for _ in range(WARM):
            forward(model, tokens)
        counts = [alive()]
        for _ in range(ROUNDS):
            forward(model, tokens)
            counts.append(alive())
        more = median_low(after - before for before, after in pairwise(counts))
    return pair.gap("leaks", float(max(0, more)), f"objects kept of every reading: {more}")


def alive() -> int:
    """How many objects Python's garbage collector knows of."""
    gc.collect()
    return len(gc.get_objects())
