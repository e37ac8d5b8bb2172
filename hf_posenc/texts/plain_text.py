"""Read plain text files, gzip-compressed or not, or raise an error that names the problem."""

from __future__ import annotations

import gzip
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from hf_posenc.core.memory import main_memory
from hf_posenc.errors import UnreadableDocuments, first_line, shown

AS_TOKENS = 300
"""Bytes of memory per byte of text while a tokenizer processes it with offsets: 185 … 271 measured."""
AS_TEXT = 8
"""The same where a text is only held."""
CHUNK = 1 << 20  # characters read at a time
GZIP = ".gz"


@contextmanager
def opened(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Open a UTF-8 text file for reading, through gzip if its name ends in ``.gz``.

    Raises:
        UnreadableDocuments: it cannot be opened, or what is read in the block is no UTF-8 text.
    """
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            kind = "a folder" if stat.S_ISDIR(about.st_mode) else "a pipe or a device, which has no known size"
            raise ValueError(f"it is {kind}; save it as a file")
        with (
            gzip.open(path, "rt", encoding="utf-8", newline=newline)
            if path.suffix.lower() == GZIP
            else path.open(encoding="utf-8", newline=newline)
        ) as stream:
            yield stream
    except UnreadableDocuments:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:  # ValueError: a NUL in the name, or no UTF-8
        raise UnreadableDocuments(
            f"The file {shown(str(path))} cannot be read as UTF-8 text: {first_line(error)}. "
            "Check the path, or convert it."
        ) from error


def chunks(path: Path) -> Iterator[str]:
    """The text of a file, a piece at a time.

    Raises:
        UnreadableDocuments: it holds bytes that are no text.
    """
    with opened(path) as stream:
        while piece := stream.read(CHUNK):
            if "\0" in piece:
                raise UnreadableDocuments(
                    f"The file {shown(str(path))} holds NUL bytes: it is a binary file, not text. "
                    "Pass a text file, or records in one of the formats that are read."
                )
            yield piece


def whole_text(path: Path) -> str:
    """The text of a file as one document.

    Raises:
        UnreadableDocuments: there is no such file, it is no text, or it takes more than half of the memory.
    """
    if path.is_file():
        check_size(path.name, path.stat().st_size, AS_TEXT)
    pieces, size = [], 0
    for piece in chunks(path):
        pieces.append(piece)
        size += len(piece)
        check_size(path.name, size, AS_TEXT)  # the size of a compressed file is known only now
    return "".join(pieces)


def split_text(path: Path, separator: str) -> Iterator[str]:
    """The documents of a file, separated by ``separator``; empty ones are left out.

    Raises:
        UnreadableDocuments: The file is no text, or one document takes more than half of the memory.
    """
    rest = ""
    for piece in chunks(path):
        *complete, rest = (rest + piece).split(separator)
        check_size(path.name, len(rest), AS_TEXT)
        yield from filter(None, complete)
    if rest:
        yield rest


def check_size(name: str, size: int, takes: int) -> None:
    """Refuse a document of ``size`` characters that would take more than half of the memory.

    Args:
        name: of the document.
        size: characters, or bytes.
        takes: bytes of memory for each of them.

    Raises:
        UnreadableDocuments: The document is too large.
    """
    wanted, room = size * takes, main_memory() // 2
    if wanted > room:
        raise UnreadableDocuments(
            f"The document {shown(name)} has {size / 2**20:,.0f} MiB, which take some {wanted / 2**30:,.1f} GiB of "
            f"memory, and there is room for {room / 2**30:,.1f}. "
            "Split it into documents (document_separator), or pass a part of it."
        )
