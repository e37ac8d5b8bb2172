"""Read files of records: JSON Lines, JSON, CSV and Parquet; each record is a document.

JSON and CSV are read by Python's own modules and not by `datasets`, which copies every file into its cache, guesses one
type per column, turns a CSV cell ``NA`` into a missing value, and does not say which line is wrong.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_posenc.errors import MissingPackage, UnreadableDocuments, first_line, shown
from hf_posenc.texts.columns import column_of, document_of
from hf_posenc.texts.document import Document, content_of
from hf_posenc.texts.plain_text import opened, whole_text

ROWS_AT_ONCE = 256  # records of a Parquet file in memory
BYTE_ORDER_MARK = "\ufeff"


def json_lines(path: Path, field: str) -> Iterator[Document]:
    """The documents of a file with a JSON object on each line; blank lines are skipped.

    Raises:
        UnreadableDocuments: a line is not valid JSON, has no such field, or no text in it; the message names the line.
    """
    for number, record in json_records(path):
        yield document_of(record, field, f"{path.name}:{number}", f"line {number} of {path.name}")


def json_records(path: Path) -> Iterator[tuple[int, object]]:
    """Number and JSON value of every line that is not blank.

    Raises:
        UnreadableDocuments: a line is not valid JSON.
    """
    with opened(path) as stream:
        for number, line in enumerate(stream, 1):
            if line.strip(BYTE_ORDER_MARK).strip():
                yield number, parsed(line.lstrip(BYTE_ORDER_MARK), f"line {number} of {path.name}")


def parsed(line: str, place: str) -> object:
    """A JSON value.

    Raises:
        UnreadableDocuments: it is none.
    """
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UnreadableDocuments(
            f"{place} is not valid JSON: {first_line(error)}. Correct the line, or remove it."
        ) from error


def json_file(path: Path, field: str) -> Iterator[Document]:
    """The documents of a JSON file: a list of records, one record, or JSON Lines under another name.

    Raises:
        UnreadableDocuments: it is none of these, or a record has no text in ``field``.
    """
    for number, record in enumerate(json_values(path), 1):
        yield document_of(record, field, f"{path.name}:{number}", f"record {number} of {path.name}")


def json_values(path: Path) -> list[object]:
    """The values of a JSON file: of a list, of one object, or of JSON Lines under another name.

    Raises:
        UnreadableDocuments: it is none of these.
    """
    text = whole_text(path).lstrip(BYTE_ORDER_MARK)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        if getattr(error, "msg", "") == "Extra data":
            return [value for _, value in json_records(path)]
        raise UnreadableDocuments(
            f"The file {shown(str(path))} is not valid JSON: {first_line(error)}. Correct it; for one record on each "
            "line, name it .jsonl."
        ) from error
    return found if isinstance(found, list) else [found]


def csv_file(path: Path, field: str) -> Iterator[Document]:
    """The documents of a CSV file, whose first row names the columns; every cell is text.

    Raises:
        UnreadableDocuments: there is no such column, or a row has no cell in it.
    """
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # 131,072 characters otherwise
    with opened(path, newline="") as stream:
        rows = csv.reader(stream, strict=True)
        try:
            heads = [head.lstrip(BYTE_ORDER_MARK) for head in next(rows, [])]
            column = column_of(heads, field, f"the first row of {path.name}")
            for number, row in enumerate(rows, 1):
                if row and len(row) != len(heads):
                    raise UnreadableDocuments(
                        f"Record {number} of {path.name} has {len(row)} cells, and {len(heads)} columns are named. "
                        "Quote cells that hold commas or line breaks."
                    )
                if row:
                    yield Document(f"{path.name}:{number}", row[heads.index(column)])
        except csv.Error as error:
            raise UnreadableDocuments(
                f"The file {shown(str(path))} is not valid CSV near line {rows.line_num}: {first_line(error)}. "
                "Correct it."
            ) from error


def parquet_file(path: Path, field: str) -> Iterator[Document]:
    """The documents of a Parquet file; of each record only the column of the text is read.

    Raises:
        MissingPackage: pyarrow, which comes with `datasets`, is not installed.
        UnreadableDocuments: it is no Parquet file, there is no such column, or no text in it.
    """
    number = 0
    try:
        with parquet_opened(path) as file:
            column = column_of(file.schema_arrow.names, field, path.name)
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=[column]):
                for value in batch.column(0).to_pylist():
                    number += 1
                    place = f"record {number} of {path.name}"
                    yield Document(f"{path.name}:{number}", content_of(value, column, place))
    except (OSError, ValueError) as error:  # pyarrow's own are subclasses
        if isinstance(error, UnreadableDocuments):
            raise
        raise damaged(path, error) from error


def parquet_opened(path: Path) -> Any:
    """Open a Parquet file.

    Raises:
        MissingPackage: pyarrow is not installed.
        UnreadableDocuments: it is no Parquet file.
    """
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingPackage("Parquet files need pyarrow, which is not installed. pip install datasets") from error
    try:
        return ParquetFile(path)
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> UnreadableDocuments:
    """The error of a file that pyarrow cannot read."""
    return UnreadableDocuments(
        f"The file {shown(str(path))} cannot be read as Parquet: {first_line(error)}. Write it again."
    )
