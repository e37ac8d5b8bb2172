"""Read the call stacks of this thread and of others.

The frames of another thread must not be touched from Python: CPython 3.11 crashes when they, or their local variables,
are read while that thread goes on. `faulthandler` writes down which functions are on the stacks, in C, in one piece and
without making a frame object. It covers up to 100 threads.
"""

from __future__ import annotations

import faulthandler
import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

Function = tuple[str, str]
"""File and name of a function."""

LONGEST = 500  # characters of a name that `faulthandler` writes
_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)")
_FRAME = re.compile(r'\s+File "(.*)", line \S+ in (.*)')


def functions_of_threads() -> dict[int, set[Function]]:
    """The functions on the stack of every thread, by the thread's identifier."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        lines = file.read().splitlines()
    found: dict[int, set[Function]] = {}
    functions: set[Function] = set()
    for line in lines:
        if thread := _THREAD.match(line):
            functions = found.setdefault(int(thread[1], 16), set())
        elif frame := _FRAME.match(line):
            functions.add((frame[1], frame[2]))
    return found


def function_of(function: Callable[..., Any]) -> Function | None:
    """How `functions_of_threads` calls a function, without its decorators; None if it is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else (as_written(code.co_filename), as_written(code.co_name))


def as_written(name: str) -> str:
    """A file or function as `faulthandler` writes it: escaped where it is not ASCII, and cut where it is long."""
    ending = "..." if len(name) > LONGEST else ""
    return name[:LONGEST].encode("ascii", "backslashreplace").decode() + ending


def own_stack() -> Iterator[FrameType]:
    """Frames of this thread, the caller's caller first."""
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]
