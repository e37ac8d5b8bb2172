"""Load the user's own documents: text files, JSON lines, folders of both, or a dataset.

notes.txt                 one document
records.jsonl             one a line, its text in ``field``
books/                    every such file below it
owner/name                the test split of a dataset, else its first; needs the network once
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from hf_posenc.errors import shown
from hf_posenc.eval.errors import UnreadableDocuments
from hf_posenc.eval.texts.text_file import AS_TEXT, read_text

LINES = {".jsonl", ".ndjson"}
TEXT = {".txt", ".md", ".rst", ".py", ".tex"}


def documents(sources: Sequence[str], field: str) -> Iterator[tuple[str, str]]:
    """Name and text of every document.

    Raises:
        UnreadableDocuments: a source is neither a file, a folder nor a dataset, or a record has no such field.
    """
    if not sources:
        raise UnreadableDocuments('The task has no documents. Pass --metadata \'{"docs": "notes.txt"}\'.')
    for source in sources:
        path = Path(source).expanduser()
        if path.is_dir():
            yield from folder(path, field)
        elif path.is_file():
            yield from file(path, field)
        else:
            yield from dataset(source, field)


def folder(path: Path, field: str) -> Iterator[tuple[str, str]]:
    """The documents of all text files below ``path``, in order of their names."""
    files = sorted(p for p in path.rglob("*") if p.suffix.lower() in LINES | TEXT)
    if not files:
        known = ", ".join(sorted(LINES | TEXT))
        raise UnreadableDocuments(f"The folder {str(path)!r} has no text files. Files that count end in {known}.")
    for one in files:
        yield from file(one, field)


def file(path: Path, field: str) -> Iterator[tuple[str, str]]:
    """The documents of one file."""
    text = read_text(path, AS_TEXT)
    if path.suffix.lower() not in LINES:
        yield path.name, text
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield f"{path.name}:{number}", record(line, field, f"line {number} of {path.name}")


def record(line: str, field: str, where: str) -> str:
    """The text of one JSON record."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UnreadableDocuments(f"There is no JSON in {where}: {error}. Mend the line or take it out.") from error
    return text_of(found, field, where)


def text_of(found: object, field: str, where: str) -> str:
    """The text of a record; one without a value counts as empty."""
    if not isinstance(found, dict) or field not in found:
        known = ", ".join(sorted(map(str, found))) if isinstance(found, dict) else type(found).__name__
        raise UnreadableDocuments(f"There is no field {field!r} in {where}, only {known}. Pass field=, its name.")
    text = found[field]
    if not isinstance(text, str | None):
        raise UnreadableDocuments(
            f"The field {field!r} in {where} holds {shown(text)}, which is no text. Pass field=, the name of another."
        )
    return text or ""


def dataset(name: str, field: str) -> Iterator[tuple[str, str]]:
    """The documents of a dataset's test split, else of its first."""
    from datasets import load_dataset

    try:
        splits = load_dataset(name)
    except Exception as error:  # the library raises a dozen types, some of them of other libraries
        raise UnreadableDocuments(
            f"{name!r} is no file and no folder, and as a dataset it cannot be loaded: {error}. Check path and network."
        ) from error
    if not splits:
        raise UnreadableDocuments(f"The dataset {name!r} has no rows. Pass another one.")
    rows = splits["test"] if "test" in splits else next(iter(splits.values()))
    for number, found in enumerate(rows):
        yield f"{name}:{number}", text_of(found, field, f"record {number} of {name}")
