"""Check of memory leaks: repeated forward passes keep no additional Python objects."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from statistics import median_low
from typing import Any

from torch import Tensor

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.registry import register_check

WARM_UP, ROUNDS = 2, 5  # forward passes; the first ones build tables
ATTEMPTS = 3  # a leak grows in every one; what other threads of the process keep does not


@register_check("memory_leaks", slow=True)
def forward_leaks_no_objects(case: Case) -> Deviation:
    """The number of live objects does not grow from one forward pass to the next.

    The value is the median growth over five passes, measured again where there is one, so that objects of other threads
    do not count.
    """
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(case.trained_length + 1, model))
        for _ in range(WARM_UP):
            forward(model, tokens)
        with earlier_objects_set_aside():
            more = min(until_none(partial(growth, model, tokens)))
    return case.deviation("memory_leaks", float(max(0, more)), f"objects kept by each forward pass: {more}")


@contextmanager
def earlier_objects_set_aside() -> Iterator[None]:
    """Keep the garbage collector from looking through what exists already, often millions of objects."""
    before = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if before == 0:  # what the caller has frozen stays so
            gc.unfreeze()


def until_none(measure: Callable[[], int]) -> Iterator[int]:
    """Measurements of growth, up to the first that finds none."""
    for _ in range(ATTEMPTS):
        yield (more := measure())
        if more <= 0:
            return


def growth(model: Any, tokens: Tensor) -> int:
    """Objects that a forward pass keeps, as the median of several."""
    counts = [count_objects()]
    for _ in range(ROUNDS):
        forward(model, tokens)
        counts.append(count_objects())
    return median_low(after - before for before, after in pairwise(counts))


def count_objects() -> int:
    """Number of objects that Python's garbage collector tracks, without those that were set aside."""
    gc.collect()
    return len(gc.get_objects())
