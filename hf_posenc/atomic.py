"""Files that are never half written: the old content or the new one, whatever interrupts the writing."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` beside ``path``, make sure it is on the disk, then move it there; missing folders are made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
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


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """`write_bytes` of ``content`` as indented UTF-8 JSON."""
    write_bytes(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
