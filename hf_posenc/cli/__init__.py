"""Command line ``hf-posenc``: each command parses its arguments, makes one library call and shows the result.

Exit codes: 0 success, 1 failure, 2 wrong option, scheme or file, 3 partly refused (the rest was done), 4 a check does
not hold, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from hf_posenc.cli.global_options import DEBUG, separated
from hf_posenc.core.lazy import explained_imports
from hf_posenc.core.plugins import import_file

WAIT_PASSIVELY = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
"""Make waiting OpenMP threads yield their core; by default they spin, and slow down other processes."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; ``--debug`` and ``--import FILE`` may stand anywhere in it."""
    for name, value in WAIT_PASSIVELY.items():  # OpenMP reads them when torch is loaded
        os.environ.setdefault(name, value)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # until the process ends
    words = list(sys.argv[1:] if arguments is None else arguments)
    debugging = DEBUG in words
    with stoppable():
        from hf_posenc.cli.app import app
        from hf_posenc.cli.errors import end, plain_warnings

        try:
            with plain_warnings(), explained_imports():
                words, files = separated(words)
                for file in files:
                    import_file(file)
                app(args=words, prog_name="hf-posenc", obj={DEBUG: debugging})
        except (Exception, KeyboardInterrupt) as error:
            if debugging:
                raise
            end(error)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise KeyboardInterrupt on the first SIGINT or SIGTERM, and end the process at once on the second.

    The exit code is 128 + the number of the signal, as shells expect.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        if received:
            os._exit(128 + number)
        received.append(number)
        raise KeyboardInterrupt

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if received:
            sys.exit(128 + received[0])
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
