"""What a signal does to a command: the first lets it put things in order, the second ends it at once.

130 after an interrupt (Ctrl-C), 143 after a request to terminate, as shells count them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal asks the command to end.

    Attributes:
        code: the process should end with.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `Stopped` on the first signal while this lasts, and end the process on the second."""
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield
        return
    first: list[int] = []

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        if first:
            os._exit(128 + number)
        first.append(number)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    except Stopped as stopped:
        sys.exit(stopped.code)
    except SystemExit:
        if first:  # Typer, or a library that took it for an error, has turned it into an exit of its own
            sys.exit(128 + first[0])
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
