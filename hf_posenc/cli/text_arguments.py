"""Options that name texts, shared by all commands that read any."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from hf_posenc.cli.bad_argument import BadArgument

if TYPE_CHECKING:
    from hf_posenc.texts import TextSource

SOURCES = "file, folder or hub:NAME:SPLIT; may be repeated"

Text = Annotated[
    list[str] | None,
    Option(
        help=f"Text to measure on: {SOURCES}; default: held-out sources of the standard library.",
        rich_help_panel="Text",
    ),
]
TextField = Annotated[
    str, Option(help="Column of the text in jsonl, json, csv, parquet and datasets; without text, messages is read.")
]
DocumentSeparator = Annotated[
    str | None,
    Option(metavar="TEXT", help=r"Split plain text files into documents here, \n is a line break; default: no split."),
]
FIELD = "text"
ESCAPES = {r"\n": "\n", r"\t": "\t", r"\f": "\f"}


def text_source(
    given: Sequence[str] | None, field: str, separator: str | None, *, streaming: bool = False
) -> TextSource | None:
    """The texts that a command is to read; None where none are named.

    Raises:
        UnreadableDocuments: there is no such file, or a name is refused.
    """
    if not given:
        return None
    from hf_posenc.errors import UnreadableDocuments, shown
    from hf_posenc.texts import TextSource

    source = TextSource.of_names(list(given), field=field, separator=unescaped(separator), streaming=streaming)
    for part in source.parts:  # refused now, and not after a large model is loaded
        if isinstance(part, Path) and not os.path.exists(part.expanduser()):
            raise UnreadableDocuments(
                f"There is no file and no folder {shown(str(part))}. Check the path; a dataset is hub:NAME."
            )
    return source


def two_sources(
    first: Sequence[str] | None,
    second: Sequence[str] | None,
    field: str,
    separator: str | None,
    *,
    streaming: bool = False,
) -> tuple[TextSource | None, TextSource | None]:
    """Two texts of one command, of which the first may be streamed; an option of reading needs to fit one of them.

    Raises:
        UnreadableDocuments: it fits neither, or a text cannot be found.
    """
    every = text_source([*(first or ()), *(second or ())], field, separator)
    if every is None:
        return None, None
    every.check_options()
    one, other = text_source(first, FIELD, None, streaming=streaming), text_source(second, FIELD, None)
    return one and one.fitted(field, every.separator), other and other.fitted(field, every.separator)


def check_reading(texts: Sequence[str] | None, field: str, separator: str | None) -> None:
    """Refuse options of reading where there is nothing to read.

    Raises:
        BadArgument: there is one, and no text is named.
    """
    if not texts and (field != FIELD or separator is not None):
        option = "document_separator" if separator is not None else "text_field"
        raise BadArgument(f"{option} has an effect with a text only, and none is named. Pass --text, or leave it out.")


def unescaped(separator: str | None) -> str | None:
    """A separator with its escapes replaced, since a shell hardly lets a line break through."""
    for written, meant in ESCAPES.items():
        separator = separator and separator.replace(written, meant)
    return separator
