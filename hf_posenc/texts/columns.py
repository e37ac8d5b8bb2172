"""Which column of a record holds its text."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hf_posenc.errors import UnreadableDocuments
from hf_posenc.texts.document import Document, content_of

TEXT, MESSAGES = "text", "messages"
"""The column of a record that is read by default, and the one that is read where there is no such column."""


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
        f"There is no field {field!r} in {place}, only {known}. Pass the name of the right one (--text-field)."
    )


def document_of(record: object, field: str, name: str, place: str) -> Document:
    """The document of a record.

    Args:
        record: a mapping from columns to values.
        field: the column of the text.
        name: of the document.
        place: where it stands, in words.

    Raises:
        UnreadableDocuments: it is no mapping, has no such column, or another value than text there.
    """
    if not isinstance(record, Mapping):
        raise UnreadableDocuments(
            f"There is no field {field!r} in {place}: it is not a record, but of type {type(record).__name__}. "
            'Write records, such as {"text": "…"}.'
        )
    column = column_of(record, field, place)
    return Document(name, content_of(record[column], column, place))
