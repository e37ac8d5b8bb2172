"""Check of memory leaks: repeated forward passes keep no additional Python objects."""

from __future__ import annotations

import gc
from itertools import pairwise
from statistics import median_low

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.registry import register_check

WARM_UP, ROUNDS = 2, 5  # forward passes; the first ones build tables


@register_check("memory_leaks", slow=True)
def forward_leaks_no_objects(case: Case) -> Deviation:
    """The number of live objects does not grow from one forward pass to the next.

    The value is the median growth over five passes, so that objects of other threads do not count.
    """
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(case.trained_length + 1, model))
        for _ in range(WARM_UP):
            forward(model, tokens)
        counts = [count_objects()]
        for _ in range(ROUNDS):
            forward(model, tokens)
            counts.append(count_objects())
        more = median_low(after - before for before, after in pairwise(counts))
    return case.deviation("memory_leaks", float(max(0, more)), f"objects kept by each forward pass: {more}")


def count_objects() -> int:
    """Number of objects that Python's garbage collector tracks."""
    gc.collect()
    return len(gc.get_objects())
