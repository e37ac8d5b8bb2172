"""Documents: their text or conversation, taken from a column of a record; and those of the library `datasets`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from hf_posenc.errors import UnreadableDocuments, first_line, shown

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict


TEXT, MESSAGES = "text", "messages"
"""The column of a record that is read by default, and the one that is read where there is no such column."""
Conversation = list[dict[str, Any]]
"""Messages with ``role`` and ``content``, as a tokenizer's chat template takes them."""


@dataclass(frozen=True)
class Document:
    """A document.

    Attributes:
        name: where it stands, for messages and reports, such as ``chats.jsonl:12``.
        content: its text, or a conversation.
    """

    name: str
    content: str | Conversation


def rendered(document: Document, tokenizer: Any) -> str:
    """The text of a document; a conversation is written out by the tokenizer's chat template.

    Raises:
        UnreadableDocuments: the tokenizer has no chat template, or its template refuses the conversation.
    """
    if isinstance(document.content, str):
        return document.content
    if not getattr(tokenizer, "chat_template", None):
        raise UnreadableDocuments(
            f"{document.name} is a conversation, and this tokenizer has no chat template. Use the tokenizer of an "
            "instruction-tuned model, set tokenizer.chat_template, or name another column as the text field."
        )
    try:
        return str(tokenizer.apply_chat_template(document.content, tokenize=False))
    except ImportError:  # transformers says that chat templates need jinja2
        raise
    except Exception as error:  # jinja2 and the template itself raise what they like
        raise UnreadableDocuments(
            f"The chat template refuses the conversation {document.name}: {first_line(error)}. "
            "Correct the conversation, or use another tokenizer."
        ) from error


def content_of(value: object, field: str, place: str) -> str | Conversation:
    """The content of a cell; one without a value counts as empty text.

    Raises:
        UnreadableDocuments: The cell holds neither text nor a list of messages.
    """
    if value is None or value == []:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(one, Mapping) and "role" in one for one in value):
        return [dict(message) for message in value]
    raise UnreadableDocuments(
        f"The field {field!r} in {place} holds {shown(value)}, which is no text and no list of messages. "
        "Name another column as the text field."
    )


def column_of(columns: Collection[str], field: str, place: str) -> str:
    """The column that holds the text: ``field``; ``messages`` where ``text`` is asked for and missing.

    Raises:
        UnreadableDocuments: there is no such column.
    """
    if field in columns:
        return field
    if field == TEXT and MESSAGES in columns:
        return MESSAGES
    known = ", ".join(sorted(map(str, columns))) or "an empty record"
    raise UnreadableDocuments(
        f"There is no field {field!r} in {place}, only {known}. Pass the name of the right one (text_field)."
    )


def document_of(record: object, field: str, name: str, place: str) -> Document:
    """The document of a record.

    Args:
        record: a mapping from columns to values.
        field: the column of the text.
        name: of the document.
        place: where it stands, in words.

    Raises:
        UnreadableDocuments: The record is no mapping, has no such column, or another value than text there.
    """
    if not isinstance(record, Mapping):
        raise UnreadableDocuments(
            f"There is no field {field!r} in {place}: it is not a record, but of type {type(record).__name__}. "
            'Write records, such as {"text": "…"}.'
        )
    column = column_of(record, field, place)
    return Document(name, content_of(record[column], column, place))


DatasetObject: TypeAlias = "Dataset | DatasetDict | IterableDataset | IterableDatasetDict"
"""An object of the `datasets` library, which is not loaded for it."""
SIZED, ITERABLE = ("Dataset", "DatasetDict"), ("IterableDataset", "IterableDatasetDict")
"""Its classes with a length and without."""
PREFIX = "hub:"


def is_dataset(given: object, kinds: Sequence[str] = (*SIZED, *ITERABLE)) -> bool:
    """Whether an object is a dataset, or several splits, of the `datasets` library; of these classes."""
    library: Any = sys.modules.get("datasets")  # an object of a library that is not loaded cannot be here
    return library is not None and isinstance(given, tuple(getattr(library, kind) for kind in kinds))


def dataset_documents(dataset: Any, field: str, name: str = "dataset") -> Iterator[Document]:
    """The documents of a dataset, in its order.

    Raises:
        UnreadableDocuments: it has several splits or none, no such column, or no text in it.
    """
    if isinstance(dataset, Mapping):
        if len(dataset) != 1:
            raise UnreadableDocuments(
                f"The dataset {shown(name)} has {len(dataset)} splits: {', '.join(dataset)}. "
                "Pass one of them, such as hub:OWNER/NAME:train or dataset['train']."
            )
        (dataset,) = dataset.values()
    columns = dataset.column_names
    if columns is not None:  # an iterable dataset may not know them
        dataset = dataset.select_columns([column_of(columns, field, name)])
    for number, record in enumerate(dataset):
        yield document_of(record, field, f"{name}:{number}", f"record {number} of {name}")


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the hub.

    Attributes:
        name: ``owner/name``.
        split: such as ``train``; not needed where there is only one.
        config: name of its configuration (subset), where it has several.
    """

    name: str
    split: str | None = None
    config: str | None = None

    @classmethod
    def parse(cls, given: str) -> HubDataset:
        """``hub:NAME``, ``hub:NAME:SPLIT`` or ``hub:NAME:CONFIG:SPLIT``.

        Raises:
            UnreadableDocuments: The name is none of these.
        """
        parts = given.removeprefix(PREFIX).split(":")
        if len(parts) > 3 or not all(parts):
            raise UnreadableDocuments(
                f"{shown(given)} names no dataset. Write hub:OWNER/NAME, hub:OWNER/NAME:SPLIT or "
                "hub:OWNER/NAME:CONFIG:SPLIT."
            )
        name, *middle, split = parts if len(parts) > 1 else [*parts, ""]
        return cls(name, split or None, middle[0] if middle else None)

    def __str__(self) -> str:
        return PREFIX + ":".join(part for part in (self.name, self.config, self.split) if part)

    def load(self, *, streaming: bool) -> Any:
        """The dataset, or its splits: downloaded once and memory-mapped, or streamed.

        Raises:
            UnreadableDocuments: The dataset cannot be loaded.
        """
        from datasets import load_dataset

        try:
            return load_dataset(self.name, self.config, split=self.split, streaming=streaming)
        except Exception as error:  # the library raises a dozen types, some of them of other libraries
            raise UnreadableDocuments(
                f"The dataset {str(self)!r} cannot be loaded: {first_line(error)}. Check its name and the network."
            ) from error
