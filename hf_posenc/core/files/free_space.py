"""Whether what a run will write has room on its disk, asked before any work starts."""

from __future__ import annotations

import shutil
from pathlib import Path

from hf_posenc.errors import NoRoom


def check_disk_space(folder: Path, needed: int, what: str) -> None:
    """Refuse a run whose files will not fit.

    Args:
        folder: where they go.
        needed: bytes.
        what: they are, in words that begin a sentence.

    Raises:
        NoRoom: the disk of ``folder`` has less room.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise NoRoom(
            f"{what} of this run take some {needed:,} bytes, and {free:,} are free on the disk of {folder}. "
            "Make room, or choose another folder."
        )
