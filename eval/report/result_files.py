"""Write the files of a result, all of them or none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.core.files.staged import staged
from hf_posenc.eval.errors import StoreUnusable


def write_result_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files by name; texts as UTF-8. The first is what the message names.

    Raises:
        StoreUnusable: the folder cannot be written; the finished cells are safe in the store.
    """
    try:
        with staged(folder) as staging:
            for name, content in files.items():
                encoded = content.encode("utf-8", "replace") if isinstance(content, str) else content
                write_bytes(staging / name, encoded)
    except OSError as error:
        raise StoreUnusable(
            f"{folder / next(iter(files))} and the other results could not be written ({error.strerror or error}). "
            "Free some space or make the folder writable, and run the same command again; every finished cell is kept."
        ) from error
