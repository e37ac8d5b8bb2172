"""Read a user's text file, or raise an error that names the problem."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from hf_posenc.core.memory import main_memory
from hf_posenc.errors import WrongKind, shown
from hf_posenc.eval.errors import UnreadableDocuments

AS_TOKENS = 300
"""Bytes of memory per byte of text while a tokenizer processes it with offsets: 185 … 271 measured."""
AS_TEXT = 8
"""The same where only the beginning is tokenised."""


def read_text(given: Any, takes: int = AS_TOKENS) -> str:
    """The text of a UTF-8 file.

    Args:
        given: its path.
        takes: bytes of memory for each of its bytes.

    Raises:
        WrongKind: it is no path.
        UnreadableDocuments: there is no such file, it is no UTF-8 text, or it takes more than half of the memory.
    """
    if not isinstance(given, (str, os.PathLike)):
        raise WrongKind(f"A text is named by the path of a file, got {shown(given)}. Pass one.")
    path = Path(given)
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
            raise ValueError("it is a pipe or a device, which has no known size; save it as a file")
        check_size(path, about.st_size, takes)
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # a NUL in the name, or bytes that are no UTF-8
        if isinstance(error, UnreadableDocuments):
            raise
        raise UnreadableDocuments(
            f"The file {shown(str(given))} cannot be read as UTF-8 text: {reason(error)}. "
            "Check the path, or convert it."
        ) from error


def check_size(path: Path, size: int, takes: int) -> None:
    """Refuse a file that would take more than half of the memory.

    Raises:
        UnreadableDocuments: it would.
    """
    wanted, room = size * takes, main_memory() // 2
    if wanted > room:
        raise UnreadableDocuments(
            f"The file {shown(str(path))} has {size / 2**20:,.0f} MiB, which take some {wanted / 2**30:,.1f} GiB of "
            f"memory as tokens, and there is room for {room / 2**30:,.1f}. Pass a part of it."
        )


def reason(error: Exception) -> str:
    """Short reason of a file error."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).partition("\n")[0].rstrip(" .")
