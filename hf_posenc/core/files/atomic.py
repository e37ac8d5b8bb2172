"""Atomic file writes: a file has its old content or the new one, whatever interrupts the writing."""

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
    """Write ``data`` to a temporary file in the same folder, sync it to disk, then rename it to ``path``.

    The rest as `replaced`.
    """
    with replaced(path) as temporary, temporary.open("wb") as file:
        file.write(data)


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The name of a temporary file in the same folder, which takes the place of ``path`` when the block ends.

    Missing folders are made, and removed again where the block fails. A file that exists keeps its permissions, and a
    link still leads to the file that is written.

    Raises:
        OSError: ``path`` is a device or a pipe; or an error of the disk.
    """
    path = Path(path).resolve()
    refuse_special_file(path)
    with folder_created(path.parent):
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            temporary.touch(exist_ok=False)  # not by mkstemp, whose files are private to the user
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
