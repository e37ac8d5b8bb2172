"""Law of what stays alive: reading the same again keeps nothing more."""

from __future__ import annotations

import gc
from itertools import pairwise
from statistics import median_low

from hf_posenc.checks.case import Pair
from hf_posenc.checks.deviation import Gap
from hf_posenc.checks.forward import read, text
from hf_posenc.checks.registry import law

WARM, ROUNDS = 2, 5  # tables are made once; what is kept of every reading shows in most rounds


@law("leaks", costly=True)
def readings_keep_nothing(pair: Pair) -> Gap:
    """The objects alive are as many after a text was read again.

    The value is how many more there are after a reading, the median of rounds: what another thread makes or
    drops meanwhile shows in one of them.
    """
    with pair.patched() as model:
        tokens = text(model, pair.length(pair.trained + 1, model))
        for _ in range(WARM):
            read(model, tokens)
        counts = [alive()]
        for _ in range(ROUNDS):
            read(model, tokens)
            counts.append(alive())
        more = median_low(after - before for before, after in pairwise(counts))
    return pair.gap("leaks", float(max(0, more)), f"objects kept of every reading: {more}")


def alive() -> int:
    """How many objects Python's garbage collector knows of."""
    gc.collect()
    return len(gc.get_objects())
