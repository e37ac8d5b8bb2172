"""Atomic file writes: a file has its old or its new content, even if writing is interrupted."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` to a temporary file, sync it to disk, then rename it to ``path``; see `replaced`."""
    with replaced(path) as temporary, temporary.open("wb") as file:
        file.write(data)


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a temporary file in the same folder, which replaces ``path`` when the block ends.

    Missing folders are created, and removed again if the block fails. An existing file keeps its permissions, and a
    link still refers to the written file.

    Raises:
        OSError: ``path`` is a device or a pipe, or the disk fails.
    """
    path = Path(path).resolve()
    refuse_special_file(path)
    with folder_created(path.parent):
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            temporary.touch(exist_ok=False)  # not by mkstemp, whose files only the user can read
            if path.exists():
                shutil.copymode(path, temporary)
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def refuse_special_file(path: Path) -> None:
    """Refuse to replace a device or a pipe by a file; raises `OSError`."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "A device or a pipe is not replaced by a file", str(path))


@contextmanager
def folder_created(folder: Path) -> Iterator[None]:
    """Create ``folder`` and its parents; if the block fails, remove the new and empty ones."""
    new = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for parent in new:
            with suppress(OSError):
                parent.rmdir()
        raise


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write ``content`` as indented UTF-8 JSON by `write_bytes`."""
    write_bytes(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
