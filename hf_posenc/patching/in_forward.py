"""Refuse to patch a model from within its own forward pass, such as from a hook of one of its modules.

Threads that patch one model wait for each other (`hf_posenc.core.lock`). A forward pass of another thread is neither
seen nor waited for: it would compute some layers as they were and others as they are. So patch a model before threads
share it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

from torch import nn

from hf_posenc.errors import ModelInUse

CALLS = ("_wrapped_call_impl", "forward")  # functions of a module on the stack of a thread that computes with it


def check_not_in_forward(model: nn.Module) -> None:
    """Refuse to change a model that this thread is computing with.

    Raises:
        ModelInUse: a call of the model is on the stack of this thread.
    """
    parts = {id(module) for module in model.modules()}
    if any(frame.f_code.co_name in CALLS and id(frame.f_locals.get("self")) in parts for frame in own_stack()):
        raise ModelInUse(
            f"This thread is inside a forward pass of the {type(model).__name__} that it wants to patch or unpatch. "
            "Do that after the call has returned, and not from a hook of the model."
        )


def own_stack() -> Iterator[FrameType]:
    """Frames of this thread, the caller's caller first."""
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]
