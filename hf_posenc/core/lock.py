"""One lock per model: threads that patch the same model do so one after the other.

One lock for all models would make a forward pass that patches another model wait for the thread that waits for it.
"""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from torch import nn

_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_LOCK = threading.Lock()


def patch_lock(base: nn.Module) -> threading.RLock:
    """The reentrant lock of a base model."""
    with _LOCK:
        return _LOCKS.setdefault(base, threading.RLock())
