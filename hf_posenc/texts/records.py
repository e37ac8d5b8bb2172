"""Read files of records, for texts and for tasks alike: JSON Lines, JSON, CSV and Parquet.

JSON and CSV are read by Python's own modules and not by `datasets`, which turns text that looks like a date into a date
and a CSV cell ``NA`` into a missing value, fills in keys that other records have, and does not say which line is wrong.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hf_posenc.errors import MissingPackage, UnreadableDocuments, first_line, shown
from hf_posenc.texts.plain_text import opened, whole_text

ROWS_AT_ONCE = 256  # records of a Parquet file in memory
BYTE_ORDER_MARK = "\ufeff"
Records = Iterator[tuple[str, Any]]
"""The place of each record, such as ``line 3 of a.jsonl``, and the record."""


def json_lines(path: Path) -> Records:
    """The JSON value of every line that is not blank."""
    with opened(path) as stream:
        for number, line in enumerate(stream, 1):
            if line.strip(BYTE_ORDER_MARK).strip():
                place = f"line {number} of {path.name}"
                yield place, parsed(line.lstrip(BYTE_ORDER_MARK), place)


def json_file(path: Path) -> Records:
    """The values of a JSON file: of a list, of one object, or of JSON Lines under another name."""
    text = whole_text(path).lstrip(BYTE_ORDER_MARK)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        if getattr(error, "msg", "") == "Extra data":
            yield from json_lines(path)
            return
        found = parsed(text, f"The file {shown(str(path))}")
    for number, value in enumerate(found if isinstance(found, list) else [found], 1):
        yield f"record {number} of {path.name}", value


def parsed(text: str, place: str) -> Any:
    """A JSON value.

    Raises:
        UnreadableDocuments: the text is not valid JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableDocuments(f"{place} is not valid JSON: {first_line(error)}. Correct it.") from error


def csv_file(path: Path) -> Records:
    """The rows of a CSV file, whose first row names the columns; every cell is text.

    Raises:
        UnreadableDocuments: the file is not valid CSV, or a row has more or fewer cells than there are columns.
    """
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # 131,072 characters otherwise
    with opened(path, newline="") as stream:
        rows = csv.reader(stream, strict=True)
        try:
            heads = [head.lstrip(BYTE_ORDER_MARK) for head in next(rows, [])]
            for number, row in enumerate(filter(None, rows), 1):
                if len(row) != len(heads):
                    raise UnreadableDocuments(
                        f"Record {number} of {path.name} has {len(row)} cells, and {len(heads)} columns are named. "
                        "Quote cells that hold commas or line breaks."
                    )
                yield f"record {number} of {path.name}", dict(zip(heads, row, strict=True))
        except csv.Error as error:
            raise UnreadableDocuments(
                f"The file {shown(str(path))} is not valid CSV near line {rows.line_num}: {first_line(error)}. "
                "Correct it."
            ) from error


def parquet_file(path: Path) -> Records:
    """The rows of a Parquet file.

    Raises:
        MissingPackage: pyarrow, which comes with `datasets`, is not installed.
        UnreadableDocuments: the file is no Parquet file.
    """
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingPackage("Parquet files need pyarrow, which is not installed. pip install datasets") from error
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
    ".jsonl": json_lines, ".ndjson": json_lines, ".json": json_file, ".csv": csv_file, ".parquet": parquet_file,
}  # fmt: skip
"""Readers of files of records, by the end of their names."""
