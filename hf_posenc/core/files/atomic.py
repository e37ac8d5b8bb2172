"""Files that are never half written: the old content or the new one, whatever interrupts the writing."""

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
    """Write ``data`` beside ``path``, make sure it is on the disk, then move it there.

    Missing folders are made, and are gone again where the writing fails.

    Raises:
        OSError: a device or a pipe is there; or the disk's own.
    """
    path = Path(path)
    refuse_special_file(path)
    with folder_created(path.parent):
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(beside, 0o644)  # mkstemp's own are private to the user
            os.replace(beside, path)
        except BaseException:
            os.unlink(beside)
            raise


def refuse_special_file(path: Path) -> None:
    """Refuse to put a file in the place of a device or a pipe: only files give way to files."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "A device or a pipe is no place for a file", str(path))


@contextmanager
def folder_created(folder: Path) -> Iterator[None]:
    """Make ``folder`` and those above it; if the block fails, those that are new and empty go."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for place in new:
            with suppress(OSError):
                place.rmdir()
        raise


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """`write_bytes` of ``content`` as indented UTF-8 JSON."""
    write_bytes(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
