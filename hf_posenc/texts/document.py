"""A document: its name, and its text or conversation, taken from a column of a record."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hf_posenc.errors import MissingPackage, UnreadableDocuments, first_line, shown

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
        MissingPackage: jinja2, which chat templates need, is not installed.
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
    except ImportError as error:
        raise MissingPackage("Chat templates need jinja2, which is not installed. pip install jinja2") from error
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
