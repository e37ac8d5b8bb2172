"""One lock a model: threads that patch one model do so one after the other; others are not held up by them.

The lock is held while forward passes of other threads are waited for. Were it one for all models, a pass that patches
another model would wait for the thread that waits for it.
"""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from torch import nn

_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_LOCK = threading.Lock()


def patch_lock(base: nn.Module) -> threading.RLock:
    """The lock of a base model; the thread that holds it may take it again."""
    with _LOCK:
        return _LOCKS.setdefault(base, threading.RLock())
