"""Records of local files for tasks, or of all files of records below a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_posenc.errors import UnreadableDocuments, shown
from hf_posenc.texts.records import FORMATS
from hf_posenc.texts.source import files_below, kind_of

Record = dict[str, Any]


def local_records(sources: Sequence[str | Path], task: str, example: str) -> Iterator[tuple[str, Record]]:
    """Place and record of every record of some files and folders.

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
        path = Path(source).expanduser()
        for file in files_below(path, FORMATS) if path.is_dir() else [path]:
            if kind_of(file) not in FORMATS:
                raise UnreadableDocuments(
                    f"The file {shown(str(file))} is not a file of records. Pass one that ends in {', '.join(FORMATS)}."
                )
            for place, record in FORMATS[kind_of(file)](file):
                if not isinstance(record, Mapping):
                    raise UnreadableDocuments(f"{place} is not a record, but {shown(record)}. Write {example}.")
                yield place, dict(record)


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
