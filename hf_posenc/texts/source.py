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
"""One or several of them, by name where they have one: ``"book.txt"``, ``"hub:owner/name:train"``."""
PLAIN = {".txt", ".md", ".rst", ".py", ".tex"}
"""Ends of the names of plain text files, by which they are found in a folder."""


@dataclass(frozen=True)
class TextSource:
    """Documents of files, folders, datasets and strings, in this order.

    Attributes:
        parts: each a document (`str`), a file or folder (`Path`), a `HubDataset`, or an object of `datasets`.
        field: column of records that holds the text.
        streaming: whether a run reads only as many documents as its steps need, and a dataset is not downloaded whole.
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
    def of_names(cls, given: TextNames, **reading: Any) -> TextSource:
        """Files, folders and ``hub:NAME`` by their names, or `datasets` objects; one or several.

        Raises:
            WrongKind: The object is something else.
        """
        several = list(given) if isinstance(given, (list, tuple)) else [given]
        return cls(tuple(part_of(one) for one in several), **reading)

    @classmethod
    def of_texts(cls, name: str, given: Any) -> TextSource:
        """Documents as `str`, files and folders as `Path`, datasets; a source as it is.

        Args:
            name: of the argument, for the error.
            given: several of these, or one path or dataset.

        Raises:
            WrongKind: The argument is something else, such as a single text.
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
        """Whether a run reads only as many documents as its steps need: asked for, or a dataset without a length."""
        return self.streaming or any(is_dataset(part, ITERABLE) for part in self.parts)

    def documents(self) -> Iterator[Document]:
        """The documents, read one after another.

        Raises:
            UnreadableDocuments: one cannot be read.
        """
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
        """Refuse a column without records to take it from.

        Raises:
            UnreadableDocuments: The column can have no effect.
        """
        if self.field != TEXT and not self.has_records:
            raise UnreadableDocuments(
                f"The text field {self.field!r} is a column of records, and there are plain texts alone. Leave it out."
            )

    @property
    def has_records(self) -> bool:
        """Whether there are records, whose column is named."""
        files = [file for part in self.parts if isinstance(part, Path) for file in files_of(part.expanduser())]
        datasets = not all(isinstance(part, (str, Path)) for part in self.parts)
        return datasets or any(kind_of(file) in FORMATS for file in files)

    def named(self) -> set[Path | HubDataset]:
        """The files among the parts by their full names, those of folders one by one, and the datasets of the hub."""
        paths = [part.expanduser().resolve() for part in self.parts if isinstance(part, Path)]
        return {
            *(file for path in paths for file in files_of(path)),
            *(part for part in self.parts if isinstance(part, HubDataset)),
        }


def part_of(given: object) -> Any:
    """What a name stands for: ``hub:…`` or a path; other objects as they are.

    Raises:
        UnreadableDocuments: the name is empty.
    """
    if given == "":  # as a path, it would be the current folder
        raise UnreadableDocuments("The name of a text is empty. Name a file, a folder or hub:NAME.")
    if isinstance(given, str) and given.startswith(PREFIX):
        return HubDataset.parse(given)
    return Path(given) if isinstance(given, (str, os.PathLike)) else given


def files_of(path: Path) -> list[Path]:
    """The files that a path stands for: those below a folder, else itself."""
    return files_below(path) if os.path.isdir(path) else [path]


def files_below(folder: Path, known: Collection[str] = PLAIN | FORMATS.keys()) -> list[Path]:
    """All files below a folder whose names end in one of the known ways, in order of their names; no hidden ones.

    Raises:
        UnreadableDocuments: There is no such file.
    """
    files = sorted(
        path for path in folder.rglob("*")
        if kind_of(path) in {*known, *CONVERTED} and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )  # fmt: skip
    for path in files:
        check_kind(path)
    if not files:
        raise UnreadableDocuments(
            f"The folder {shown(str(folder))} has no such files. Files that count end in {', '.join(sorted(known))}."
        )
    return files


def kind_of(path: Path) -> str:
    """The end of a file's name that tells its format."""
    return path.suffix.lower()


def check_kind(path: Path) -> None:
    """Refuse a file that would be read as plain text, or left out of a folder, and is none.

    Raises:
        UnreadableDocuments: it is a CSV, Arrow or compressed file.
    """
    if kind_of(path) in CONVERTED:
        raise UnreadableDocuments(
            f"The file {shown(str(path))} is in a format that is not read. Unpack it with gunzip, write a dataset with "
            'to_parquet, or CSV as JSON Lines: pandas.read_csv(…).to_json("a.jsonl", orient="records", lines=True).'
        )


def file_documents(path: Path, field: str) -> Iterator[Document]:
    """The documents of a file; one whose name ends in no known way is plain text."""
    check_kind(path)
    if kind_of(path) in FORMATS:
        for place, record in FORMATS[kind_of(path)](path):
            yield document_of(record, field, f"{path.name}:{place.split()[1]}", place)
    else:
        yield Document(path.name, whole_text(path))


def texts_digest(texts: Iterable[bytes]) -> str:
    """Digest of several texts in order: equal only where all of them are."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.hexdigest()
