"""Where documents come from, and how they are read: `TextSource`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from hf_posenc.errors import UnreadableDocuments, WrongKind, shown
from hf_posenc.texts.document import (
    ITERABLE,
    PREFIX,
    TEXT,
    DatasetObject,
    Document,
    HubDataset,
    dataset_documents,
    document_of,
    is_dataset,
)
from hf_posenc.texts.files import CONVERTED, FORMATS, whole_text

TextPart: TypeAlias = "str | Path | HubDataset | DatasetObject"
"""A document, a file or folder, or a dataset."""
TextNames: TypeAlias = "TextPart | Sequence[TextPart]"
"""One or several text parts; files and datasets also by name: ``"book.txt"``, ``"hub:owner/name:train"``."""
PLAIN = {".txt", ".md", ".rst", ".py", ".tex"}
"""Suffixes of the plain text files that are read from a folder."""


@dataclass(frozen=True)
class TextSource:
    """Documents from strings, files, folders and datasets, in the order of ``parts``.

    Attributes:
        parts: documents (`str`), files or folders (`Path`), `HubDataset`, or objects of `datasets`.
        field: column of records that holds the text.
        streaming: read only as many documents as the steps of a run need, and do not download whole datasets.
    """

    parts: tuple[TextPart, ...]
    field: str = TEXT
    streaming: bool = False

    def __post_init__(self) -> None:
        for part in self.parts:
            if not isinstance(part, (str, Path, HubDataset)) and not is_dataset(part):
                raise WrongKind(f"Texts are documents, paths or datasets, got {shown(part)}. Pass one of these.")
        if not isinstance(self.field, str) or not self.field:
            raise WrongKind(f"The text field is the name of a column, got {shown(self.field)}. Pass one.")

    @classmethod
    def of_names(cls, names: TextNames, **fields: Any) -> TextSource:
        """Build a source from one or several names of files, folders and ``hub:NAME``, or `datasets` objects.

        Raises:
            WrongKind: an object is something else.
        """
        several = list(names) if isinstance(names, (list, tuple)) else [names]
        return cls(tuple(part_of(name) for name in several), **fields)

    @classmethod
    def of_texts(cls, name: str, given: Any) -> TextSource:
        """Build a source from an argument of a function.

        Args:
            name: name of the argument, for the error.
            given: a list of documents (`str`), files and folders (`Path`) and datasets; one path or dataset; a source.

        Raises:
            WrongKind: the argument is something else, such as a single text.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, (Path, HubDataset)) or is_dataset(given):
            return cls((given,))
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
            raise WrongKind(
                f"{name} is a list of documents, got {shown(given)}. Pass one, such as [text] or [Path(file)]."
            )
        return cls(tuple(given))

    @property
    def streams(self) -> bool:
        """Whether only as many documents are read as the steps need: by ``streaming``, or for an iterable dataset."""
        return self.streaming or any(is_dataset(part, ITERABLE) for part in self.parts)

    def documents(self) -> Iterator[Document]:
        """Yield the documents, read one after another."""
        self.check_field()
        for number, part in enumerate(self.parts, 1):
            if isinstance(part, str):
                yield Document(f"document {number}", part)
            elif isinstance(part, Path):
                for file in files_of(part.expanduser()):
                    yield from file_documents(file, self.field)
            elif isinstance(part, HubDataset):
                yield from dataset_documents(part.load(streaming=self.streaming), self.field, str(part))
            else:
                yield from dataset_documents(part, self.field)

    def check_field(self) -> None:
        """Refuse a ``field`` that has no effect, because no part has records."""
        if self.field != TEXT and not self.has_records:
            raise UnreadableDocuments(
                f"The text field {self.field!r} is a column of records, and there are plain texts alone. Leave it out."
            )

    @property
    def has_records(self) -> bool:
        """Whether any part has records, as datasets and JSON files do."""
        files = [file for part in self.parts if isinstance(part, Path) for file in files_of(part.expanduser())]
        datasets = not all(isinstance(part, (str, Path)) for part in self.parts)
        return datasets or any(kind_of(file) in FORMATS for file in files)

    def named(self) -> set[Path | HubDataset]:
        """Return the absolute paths of all files, those in folders included, and the datasets on the Hub."""
        paths = [part.expanduser().resolve() for part in self.parts if isinstance(part, Path)]
        return {
            *(file for path in paths for file in files_of(path)),
            *(part for part in self.parts if isinstance(part, HubDataset)),
        }


def part_of(given: object) -> Any:
    """Convert a name to a `HubDataset` (``hub:…``) or a path; return other objects unchanged."""
    if given == "":  # as a path, it would be the current folder
        raise UnreadableDocuments("The name of a text is empty. Name a file, a folder or hub:NAME.")
    if isinstance(given, str) and given.startswith(PREFIX):
        return HubDataset.parse(given)
    return Path(given) if isinstance(given, (str, os.PathLike)) else given


def files_of(path: Path) -> list[Path]:
    """Return the files below a folder, or the file itself."""
    return files_below(path) if os.path.isdir(path) else [path]


def files_below(folder: Path, known: Collection[str] = PLAIN | FORMATS.keys()) -> list[Path]:
    """Return all files below a folder with a known suffix, sorted, without hidden ones."""
    files = sorted(
        path for path in folder.rglob("*")
        if kind_of(path) in {*known, *CONVERTED} and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )  # fmt: skip
    for path in files:
        check_kind(path)
    if not files:
        raise UnreadableDocuments(
            f"The folder {shown(str(folder))} has no text files. Files that count end in {', '.join(sorted(known))}."
        )
    return files


def kind_of(path: Path) -> str:
    """Return the suffix of a file in lower case."""
    return path.suffix.lower()


def check_kind(path: Path) -> None:
    """Refuse a file in a format that is not read, instead of skipping it or reading it as plain text."""
    if kind_of(path) in CONVERTED:
        raise UnreadableDocuments(
            f"The file {shown(str(path))} is in a format that is not read. Unpack it with gunzip, write a dataset with "
            'to_parquet, or CSV as JSON Lines: pandas.read_csv(…).to_json("a.jsonl", orient="records", lines=True).'
        )


def file_documents(path: Path, field: str) -> Iterator[Document]:
    """Yield the documents of a file; a file with an unknown suffix is plain text."""
    check_kind(path)
    if kind_of(path) in FORMATS:
        for place, record in FORMATS[kind_of(path)](path):
            yield document_of(record, field, f"{path.name}:{place.split()[1]}", place)
    else:
        yield Document(path.name, whole_text(path))


def texts_digest(texts: Iterable[bytes]) -> str:
    """Return the digest of several texts in order; equal digests mean equal texts."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.hexdigest()
