"""Read the call stacks of other threads.

A stack must be read while its thread stands still: walked frame by frame in Python, where the interpreter may change
threads between two steps, it loses generators that were left meanwhile, and CPython 3.11 has been seen to crash. The
walk is therefore one call of functions written in C, during which the global interpreter lock is never released.
Free-threaded builds of Python have no such lock: there a stack may change while it is read.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain, islice, repeat, takewhile
from operator import is_not, itemgetter
from types import FrameType
from typing import Any


def stack_of(thread: int) -> list[FrameType]:
    """Frames of a thread at one moment, innermost first; empty where the thread has ended."""
    innermost: Any = islice(map(itemgetter(thread), iter(sys._current_frames, None)), 1)
    frames: Any = accumulate(chain(innermost, repeat("f_back")), getattr)  # a frame, its caller, … until None
    try:
        with _no_finalizers():
            return list(takewhile(partial(is_not, None), frames))
    except KeyError:
        return []


@contextmanager
def _no_finalizers() -> Iterator[None]:
    """No garbage collection: it may run somebody's ``__del__``, in which threads change."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def own_stack() -> Iterator[FrameType]:
    """Frames of this thread, the caller's caller first."""
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]
