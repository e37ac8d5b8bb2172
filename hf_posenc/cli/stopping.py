"""Signal handling of commands: the first signal lets a command clean up, the second ends the process at once.

Exit code 130 after SIGINT (Ctrl-C) and 143 after SIGTERM, as shells expect.

Python discards what a signal handler raises while a destructor or a weak reference's callback runs, and the command
would go on. `sys.unraisablehook` is told of it, so the signal is sent once more a moment later.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGAIN = 0.05  # seconds: a destructor has ended by then


class Stopped(KeyboardInterrupt):
    """A signal has asked the command to end.

    Attributes:
        code: exit code for the process.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


def send(number: int) -> None:
    """Let the main thread handle a signal."""
    if sys.platform == "win32":
        _thread.interrupt_main(number)
    else:  # ends a system call that the main thread waits for, too
        signal.pthread_kill(threading.main_thread().ident or 0, number)


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside the block, raise `Stopped` on the first signal and end the process on the second."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set signal handlers
        yield
        return
    first: list[int] = []
    again: list[threading.Timer] = []

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        if first:
            os._exit(128 + number)
        first.append(number)
        raise Stopped(number)

    def discarded(what: sys.UnraisableHookArgs) -> None:
        if not isinstance(what.exc_value, Stopped):
            return hook(what)
        again.append(threading.Timer(AGAIN, send, [first.pop()]))
        again[-1].start()

    hook, sys.unraisablehook = sys.unraisablehook, discarded
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    except Stopped as stopped:
        sys.exit(stopped.code)
    except SystemExit:
        if first:  # Typer or a library has converted `Stopped` into its own exit
            sys.exit(128 + first[0])
        raise
    finally:
        for timer in again:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
