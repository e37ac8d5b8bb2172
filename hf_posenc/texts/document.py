"""Documents: text from a column of a record, and datasets of the library `datasets`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from hf_posenc.errors import UnreadableDocuments, first_line, shown

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict


TEXT = "text"
"""The column of a record that is read by default."""


@dataclass(frozen=True)
class Document:
    """A document.

    Attributes:
        name: file and record for messages and reports, such as ``books.jsonl:12``.
        content: the text.
    """

    name: str
    content: str


def check_column(columns: Collection[str], field: str, place: str) -> None:
    """Refuse records without the column of the text."""
    if field not in columns:
        names = ", ".join(sorted(map(str, columns))) or "an empty record"
        raise UnreadableDocuments(
            f"There is no field {field!r} in {place}, only {names}. Pass the name of the right one (text_field)."
        )


def document_of(record: object, field: str, name: str, place: str) -> Document:
    """Convert a record to a document; a column without a value counts as empty text.

    Args:
        record: a mapping from columns to values.
        field: the column of the text.
        name: name of the document.
        place: place of the record, in words.
    """
    if not isinstance(record, Mapping):
        raise UnreadableDocuments(
            f"There is no field {field!r} in {place}: it is not a record, but of type {type(record).__name__}. "
            'Write records, such as {"text": "…"}.'
        )
    check_column(record, field, place)
    value = record[field]
    if value is not None and not isinstance(value, str):
        raise UnreadableDocuments(
            f"The field {field!r} in {place} holds {shown(value)}, which is no text. Name another column as the text "
            "field; of a conversation, write the text with tokenizer.apply_chat_template."
        )
    return Document(name, value or "")


DatasetObject: TypeAlias = "Dataset | DatasetDict | IterableDataset | IterableDatasetDict"
"""An object of the `datasets` library; the annotation does not import it."""
SIZED, ITERABLE = ("Dataset", "DatasetDict"), ("IterableDataset", "IterableDatasetDict")
"""Classes of `datasets` with a length, and without."""
PREFIX = "hub:"


def is_dataset(given: object, kinds: Sequence[str] = (*SIZED, *ITERABLE)) -> bool:
    """Whether an object is a dataset, or a dictionary of splits, of these classes of the `datasets` library."""
    library: Any = sys.modules.get("datasets")  # without the library loaded, there is no object of it
    return library is not None and isinstance(given, tuple(getattr(library, kind) for kind in kinds))


def dataset_documents(dataset: Any, field: str, name: str = "dataset") -> Iterator[Document]:
    """Yield the documents of a dataset in order."""
    if isinstance(dataset, Mapping):
        if len(dataset) != 1:
            raise UnreadableDocuments(
                f"The dataset {shown(name)} has {len(dataset)} splits: {', '.join(dataset)}. "
                "Pass one of them, such as hub:OWNER/NAME:train or dataset['train']."
            )
        (dataset,) = dataset.values()
    columns = dataset.column_names
    if columns is not None:  # an iterable dataset may not know its columns
        check_column(columns, field, name)
        dataset = dataset.select_columns([field])
    for number, record in enumerate(dataset):
        yield document_of(record, field, f"{name}:{number}", f"record {number} of {name}")


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the Hugging Face Hub.

    Attributes:
        name: ``owner/name``.
        split: name of the split, such as ``train``; not needed if there is only one.
        config: name of the configuration (subset), if there are several.
    """

    name: str
    split: str | None = None
    config: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubDataset:
        """Parse ``hub:NAME``, ``hub:NAME:SPLIT`` or ``hub:NAME:CONFIG:SPLIT``."""
        parts = text.removeprefix(PREFIX).split(":")
        if len(parts) > 3 or not all(parts):
            raise UnreadableDocuments(
                f"{shown(text)} names no dataset. Write hub:OWNER/NAME, hub:OWNER/NAME:SPLIT or "
                "hub:OWNER/NAME:CONFIG:SPLIT."
            )
        name, *middle, split = parts if len(parts) > 1 else [*parts, ""]
        return cls(name, split or None, middle[0] if middle else None)

    def __str__(self) -> str:
        return PREFIX + ":".join(part for part in (self.name, self.config, self.split) if part)

    def load(self, *, streaming: bool) -> Any:
        """Load the dataset, or a dictionary of its splits: downloaded and memory-mapped, or streamed."""
        from datasets import load_dataset

        try:
            return load_dataset(self.name, self.config, split=self.split, streaming=streaming)
        except Exception as error:  # `datasets` raises a dozen types, some from other libraries
            raise UnreadableDocuments(
                f"The dataset {str(self)!r} cannot be loaded: {first_line(error)}. Check its name and the network."
            ) from error
