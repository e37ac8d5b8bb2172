"""Atomic file writes: a file has its old content or the new one, whatever interrupts the writing."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` to a temporary file in the same folder, sync it to disk, then rename it to ``path``.

    Missing folders are made, and removed again where the writing fails.

    Raises:
        OSError: ``path`` is a device or a pipe; or an error of the disk.
    """
    path = Path(path)
    refuse_special_file(path)
    with folder_created(path.parent):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)  # mkstemp's own are private to the user
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


def refuse_special_file(path: Path) -> None:
    """Refuse to replace a device or a pipe by a file."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "A device or a pipe is not replaced by a file", str(path))


@contextmanager
def folder_created(folder: Path) -> Iterator[None]:
    """Make ``folder`` and its parents; if the block fails, remove those that are new and empty."""
    new = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for made in new:
            with suppress(OSError):
                made.rmdir()
        raise


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """`write_bytes` of ``content`` as indented UTF-8 JSON."""
    write_bytes(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
