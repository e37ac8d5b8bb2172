"""A disk whose n-th call fails: SQLite's way of testing, without root and without a real disk."""

from __future__ import annotations

import builtins
import errno
import io
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from safetensors import SafetensorError

ERRNOS = tuple(getattr(errno, name) for name in ("ENOSPC", "EACCES", "EROFS", "EIO", "EMFILE", "EFBIG", "EINTR"))
SQLITE_MESSAGES = {
    errno.ENOSPC: "database or disk is full", errno.EFBIG: "database or disk is full", errno.EIO: "disk I/O error",
    errno.EACCES: "attempt to write a readonly database", errno.EROFS: "attempt to write a readonly database",
    errno.EMFILE: "unable to open database file", errno.EINTR: "interrupted",
}  # fmt: skip
CALLS = ("replace", "rename", "mkdir", "link", "fsync", "write", "chmod")


class FaultyIO:
    """While this lasts, the ``n``-th call that changes something below ``root`` fails with ``number``, and no other.

    Counted are the calls of `os` in `CALLS`, opening for writing, every write, flush and close of a file so opened
    (a write that fails leaves half of its bytes), what safetensors serialises, and every statement of SQLite.
    """

    def __init__(self, root: Path, n: int, number: int) -> None:
        self.root, self.left, self.number = root.resolve(), n, number
        self.patch = pytest.MonkeyPatch()
        self.failed: str | None = None

    def __enter__(self) -> FaultyIO:
        for name in CALLS:
            self.patch.setattr(os, name, self.counted(name, getattr(os, name)))
        self.patch.setattr(os, "open", self.opening(os.open))
        opened = self.opened(io.open)
        for module in (builtins, io):
            self.patch.setattr(module, "open", opened)
        self.patch.setattr(safetensors.torch, "serialize_file", self.serialising(safetensors.torch.serialize_file))
        self.patch.setattr(sqlite3, "connect", self.connecting(sqlite3.connect))
        return self

    def __exit__(self, *_: object) -> None:
        self.patch.undo()

    def strikes(self, what: str) -> bool:
        self.left -= 1
        if self.left:
            return False
        self.failed = what
        return True

    def fail(self, what: str) -> None:
        if self.strikes(what):
            raise OSError(self.number, os.strerror(self.number))

    def inside(self, path: Any) -> bool:
        if isinstance(path, int):
            return path > 2
        return self.root in (found := Path(os.path.abspath(os.fsdecode(path))), *found.parents)

    def counted(self, name: str, original: Callable) -> Callable:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if self.inside(path):
                self.fail(name)
            return original(path, *args, **kwargs)

        return call

    def opening(self, original: Callable) -> Callable:
        def call(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR) and self.inside(path):
                self.fail("os.open")
            return original(path, flags, *args, **kwargs)

        return call

    def opened(self, original: Callable) -> Callable:
        def call(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if set(mode) <= set("rbt") or not self.inside(file):
                return original(file, mode, *args, **kwargs)
            if not isinstance(file, int):
                self.fail("open")
            return FaultyFile(original(file, mode, *args, **kwargs), self)

        return call

    def serialising(self, original: Callable) -> Callable:
        def call(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> None:
            if self.inside(filename) and self.strikes("safetensors"):
                message = f"I/O error: {os.strerror(self.number)} (os error {self.number})"
                raise SafetensorError(f"Error while serializing: {message}")
            return original(tensors, filename, *args, **kwargs)

        return call

    def connecting(self, original: Callable) -> Callable:
        faults = self

        class Faulty(sqlite3.Connection):
            def execute(self, *args: Any) -> Any:
                if faults.strikes("sqlite"):
                    raise sqlite3.OperationalError(SQLITE_MESSAGES[faults.number])
                return super().execute(*args)

        return lambda *args, **kwargs: original(*args, factory=Faulty, **kwargs)


class FaultyFile:
    """A file open for writing whose calls are counted, too."""

    def __init__(self, file: Any, faults: FaultyIO) -> None:
        self.file, self.faults = file, faults

    def write(self, data: Any) -> int:
        if self.faults.strikes("write"):
            self.file.write(data[: len(data) // 2])
            raise OSError(self.faults.number, os.strerror(self.faults.number))
        return self.file.write(data)

    def flush(self) -> None:
        self.faults.fail("flush")
        self.file.flush()

    def close(self) -> None:
        self.file.close()
        self.faults.fail("close")

    def __enter__(self) -> FaultyFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)
