"""One thread at a time: a model that two of them patch at once would be left with half of each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
LOCK = threading.RLock()


def one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """The function, in which at most one thread is at any time; it may call itself and others of these."""

    @wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with LOCK:
            return function(*args, **kwargs)

    return alone
