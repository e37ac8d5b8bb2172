"""Who may change a model: one thread at a time, and none from within a forward pass of it, such as from a hook.

Threads that patch one model wait for each other. One lock for all models would make a forward pass that patches another
model wait for the thread that waits for it. A forward pass of another thread is neither seen nor waited for: it would
compute some layers as they were and others as they are. So patch a model before threads share it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from weakref import WeakKeyDictionary

from torch import nn

from hf_posenc.errors import ModelInUse

CALLS = ("_wrapped_call_impl", "forward")  # functions of a module on the stack of a thread that computes with it
_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_LOCK = threading.Lock()


@contextmanager
def changing(model: nn.Module, base: nn.Module) -> Iterator[None]:
    """Run the block while no other thread changes ``base``, which is inside ``model``; a thread may enter it twice.

    Raises:
        ModelInUse: a call of the model is on the stack of this thread.
    """
    parts = {id(module) for module in model.modules()}
    if any(frame.f_code.co_name in CALLS and id(frame.f_locals.get("self")) in parts for frame in own_stack()):
        raise ModelInUse(
            f"This thread is inside a forward pass of the {type(model).__name__} that it wants to patch or unpatch. "
            "Do that after the call has returned, and not from a hook of the model."
        )
    with _LOCK:
        lock = _LOCKS.setdefault(base, threading.RLock())
    with lock:
        yield


def own_stack() -> Iterator[FrameType]:
    """Frames of this thread, the caller's caller first."""
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]
