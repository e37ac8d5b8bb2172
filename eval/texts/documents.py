"""Load the user's own documents for `posenc_docs`: files, folders, or a dataset.

notes.txt                 one document
records.jsonl             one a record, its text in ``field``
books/                    every such file below it
hub:owner/name:train      a dataset; a bare owner/name is its test split, else its first; needs the network once
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hf_posenc.errors import UnreadableDocuments, first_line
from hf_posenc.texts import Document, TextSource
from hf_posenc.texts.dataset_objects import PREFIX, dataset_documents, datasets_library


def documents(sources: Sequence[str], field: str, separator: str | None = None) -> Iterator[Document]:
    """The documents of all sources, one after another.

    Raises:
        UnreadableDocuments: a source is neither a file, a folder nor a dataset, or a record has no such field.
    """
    if not sources:
        raise UnreadableDocuments("The task has no documents. Pass --set docs=notes.txt, or --metadata in lm-eval.")
    for source in sources:
        if source.startswith(PREFIX) or Path(source).expanduser().exists():
            yield from TextSource.of_names(source).fitted(field, separator).documents()
        else:
            yield from dataset(source, field)


def dataset(name: str, field: str) -> Iterator[Document]:
    """The documents of a dataset's test split, else of its first."""
    try:
        splits = datasets_library().load_dataset(name)
    except Exception as error:  # the library raises a dozen types, some of them of other libraries
        raise UnreadableDocuments(
            f"{name!r} is no file and no folder, and as a dataset it cannot be loaded: {first_line(error)}. "
            "Check path and network."
        ) from error
    if not splits:
        raise UnreadableDocuments(f"The dataset {name!r} has no rows. Pass another one.")
    rows = splits["test"] if "test" in splits else next(iter(splits.values()))
    yield from dataset_documents(rows, field, name)
