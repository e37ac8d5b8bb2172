"""Check for free disk space before a run starts."""

from __future__ import annotations

import shutil
from pathlib import Path

from hf_posenc.errors import NoDiskSpace


def check_disk_space(folder: Path, needed: int, what: str) -> None:
    """Refuse a run whose files will not fit.

    Args:
        folder: where the files will be written.
        needed: bytes.
        what: name of the files, as it begins a sentence.

    Raises:
        NoDiskSpace: the disk of ``folder`` has less free space.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise NoDiskSpace(
            f"{what} of this run take some {needed:,} bytes, and {free:,} are free on the disk of {folder}. "
            "Free some space, or choose another folder."
        )
