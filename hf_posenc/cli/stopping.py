"""Signal handling of commands: the first signal lets a command clean up, the second ends the process at once.

Exit code 130 after SIGINT (Ctrl-C) and 143 after SIGTERM, as shells expect.
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
    """A signal has asked the command to end.

    Attributes:
        code: exit code for the process.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside the block, raise `Stopped` on the first signal and end the process on the second."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set signal handlers
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
        if first:  # Typer or a library has converted `Stopped` into its own exit
            sys.exit(128 + first[0])
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
