"""Records of local files: JSON Lines, JSON and Parquet; of a folder, those of all such files below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_posenc.errors import UnreadableDocuments, shown
from hf_posenc.texts.records import json_records, json_values, parquet_opened
from hf_posenc.texts.source import hidden, kind_of

LINES, WHOLE, COLUMNS = (".jsonl", ".ndjson"), ".json", ".parquet"

Record = dict[str, Any]


def local_records(sources: Sequence[str | Path], task: str, example: str) -> Iterator[tuple[str, Record]]:
    """Place and record of every record of some files and folders.

    A JSON file is a list of records; or one object, which is a single record.

    Args:
        sources: files and folders.
        task: what needs them, for the error.
        example: of a record, for the error.

    Raises:
        UnreadableDocuments: there is no source, it cannot be read, or holds something else than records.
    """
    if not sources:
        raise UnreadableDocuments(
            f"The task {task} reads its documents from a file, and none is named. Pass data=FILE (--set data=FILE), "
            f"with records as {example}."
        )
    for source in sources:
        for file in files_of(Path(source).expanduser()):
            for place, record in file_records(file):
                if not isinstance(record, Mapping):
                    raise UnreadableDocuments(f"{place} is not a record, but {shown(record)}. Write {example}.")
                yield place, dict(record)


def files_of(path: Path) -> list[Path]:
    """The file, or those of records below a folder, in the order of their names.

    Raises:
        UnreadableDocuments: there is none.
    """
    known = (*LINES, WHOLE, COLUMNS)
    if not path.is_dir():
        if kind_of(path) not in known:
            raise UnreadableDocuments(
                f"The file {shown(str(path))} is not a file of records. Pass one that ends in {', '.join(known)}."
            )
        return [path]
    files = sorted(
        p for p in path.rglob("*") if kind_of(p) in known and p.is_file() and not hidden(p.relative_to(path))
    )
    if not files:
        raise UnreadableDocuments(f"The folder {shown(str(path))} has no files of records ({', '.join(known)}).")
    return files


def file_records(file: Path) -> Iterator[tuple[str, object]]:
    """Place and value of every record of a file."""
    if kind_of(file) in LINES:
        for number, value in json_records(file):
            yield f"line {number} of {file.name}", value
    elif kind_of(file) == COLUMNS:
        with parquet_opened(file) as opened:
            for number, value in enumerate((row for batch in opened.iter_batches(256) for row in batch.to_pylist()), 1):
                yield f"record {number} of {file.name}", value
    else:
        for number, value in enumerate(json_values(file), 1):
            yield f"record {number} of {file.name}", value


def texts_of(record: Mapping[str, Any], names: Sequence[str], place: str) -> tuple[str, ...]:
    """The texts in the first of some fields that a record has: one, several, or SQuAD's ``{"text": [...]}``.

    Raises:
        UnreadableDocuments: it has none of these fields, or no text in it.
    """
    name = next((name for name in names if record.get(name) is not None), None)
    if name is None:
        known = ", ".join(map(str, record)) or "no field"
        raise UnreadableDocuments(
            f"There is no field {' or '.join(map(repr, names))} in {place}, only {known}. Add it."
        )
    value = record[name]
    value = value.get("text", value) if isinstance(value, Mapping) else value
    several = value if isinstance(value, (list, tuple)) else [value]
    several = [one.get("text", "") if isinstance(one, Mapping) else one for one in several]
    if not several or not all(isinstance(one, str) and one.strip() for one in several):
        raise UnreadableDocuments(f"The field {name!r} in {place} holds {shown(value)}. Write text there.")
    return tuple(several)
