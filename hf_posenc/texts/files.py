"""Read files of plain text, JSON and Parquet records.

JSON is read by Python's own module. `datasets` would convert text that looks like a date, add the keys of other
records, and not report the line of an error.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from hf_posenc.core.memory import main_memory
from hf_posenc.errors import UnreadableDocuments, first_line, shown

AS_TOKENS = 300
"""Bytes of memory per byte of text while a tokenizer processes it with offsets: 185 … 271 measured."""


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 text file; an error while the block reads it raises `UnreadableDocuments` as well."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device, which has no known size"
            raise ValueError(f"it is {kind}; save it as a file")
        with path.open(encoding="utf-8") as stream:
            yield stream
    except UnreadableDocuments:
        raise
    except FileNotFoundError as error:
        raise UnreadableDocuments(
            f"The file {shown(str(path))} does not exist. Check the path; a dataset on the hub is hub:OWNER/NAME."
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name, or no UTF-8
        raise UnreadableDocuments(
            f"The file {shown(str(path))} cannot be read as UTF-8 text: {first_line(error)}. "
            "Check the path, or convert it."
        ) from error


def whole_text(path: Path) -> str:
    """Read the text of a file as one document."""
    with opened(path) as stream:
        text = stream.read()
    if "\0" in text:
        raise UnreadableDocuments(
            f"The file {shown(str(path))} holds NUL bytes: it is a binary file, not text. "
            "Pass a text file, or records in one of the formats that are read."
        )
    return text


def check_size(name: str, size: int) -> None:
    """Refuse a document of ``size`` characters that would take more than half of the memory."""
    needed, room = size * AS_TOKENS, main_memory() // 2
    if needed > room:
        raise UnreadableDocuments(
            f"The document {shown(name)} has {size / 2**20:,.0f} MiB, which need about {needed / 2**30:,.1f} GiB of "
            f"memory, but there is room for {room / 2**30:,.1f}. "
            "Split it into files or records, or pass a part of it."
        )


ROWS_AT_ONCE = 256  # records of a Parquet file in memory
BYTE_ORDER_MARK = "\ufeff"
Records = Iterator[tuple[str, Any]]
"""Pairs of the place of a record, such as ``line 3 of a.jsonl``, and the record."""


def json_lines(path: Path) -> Records:
    """Yield the JSON value of every line that is not blank."""
    with opened(path) as stream:
        for number, line in enumerate(stream, 1):
            if line.strip(BYTE_ORDER_MARK).strip():
                place = f"line {number} of {path.name}"
                yield place, parsed(line.lstrip(BYTE_ORDER_MARK), place)


def json_file(path: Path) -> Records:
    """Yield the records of a JSON file: a list, one object, or JSON Lines under another name."""
    text = whole_text(path).lstrip(BYTE_ORDER_MARK)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        if getattr(error, "msg", "") == "Extra data":
            yield from json_lines(path)
            return
        content = parsed(text, f"The file {shown(str(path))}")
    for number, value in enumerate(content if isinstance(content, list) else [content], 1):
        yield f"record {number} of {path.name}", value


def parsed(text: str, place: str) -> Any:
    """Parse a JSON value."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableDocuments(f"{place} is not valid JSON: {first_line(error)}. Correct it.") from error


def parquet_file(path: Path) -> Records:
    """Yield the rows of a Parquet file."""
    from pyarrow.parquet import ParquetFile  # comes with `datasets`

    try:
        with ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches(batch_size=ROWS_AT_ONCE) for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield f"record {number} of {path.name}", row
    except (OSError, ValueError) as error:  # pyarrow's own are subclasses
        if isinstance(error, UnreadableDocuments):
            raise
        raise UnreadableDocuments(
            f"The file {shown(str(path))} cannot be read as Parquet: {first_line(error)}. Write it again."
        ) from error


FORMATS: dict[str, Callable[[Path], Records]] = {
    ".jsonl": json_lines, ".ndjson": json_lines, ".json": json_file, ".parquet": parquet_file,
}  # fmt: skip
"""Readers of files of records, by suffix."""
CONVERTED = (".csv", ".gz", ".arrow")
"""Suffixes of text files that must be converted first; they are refused, not skipped."""
