"""Documents of `datasets` objects: map-style and iterable ones, and folders that ``save_to_disk`` wrote."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hf_posenc.errors import UnreadableDocuments, first_line, shown
from hf_posenc.texts.document import Document, column_of, document_of
from hf_posenc.texts.hub import datasets_library, only_split

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

DatasetObject: TypeAlias = "Dataset | DatasetDict | IterableDataset | IterableDatasetDict"
"""An object of the `datasets` library, which is not loaded for it."""
SAVED = ("state.json", "dataset_dict.json")
"""Files by which a folder is known that ``save_to_disk`` wrote: of a dataset, and of several splits."""


def is_dataset(given: object) -> bool:
    """Whether an object is a dataset, or several splits, of the `datasets` library."""
    library: Any = sys.modules.get("datasets")  # an object of a library that is not loaded cannot be here
    kinds = ("Dataset", "IterableDataset", "DatasetDict", "IterableDatasetDict")
    return library is not None and isinstance(given, tuple(getattr(library, kind) for kind in kinds))


def is_iterable_dataset(given: object) -> bool:
    """Whether an object is a dataset without a length, or splits of such ones."""
    library: Any = sys.modules.get("datasets")
    return library is not None and isinstance(given, (library.IterableDataset, library.IterableDatasetDict))


def dataset_documents(dataset: Any, field: str, name: str = "dataset") -> Iterator[Document]:
    """The documents of a dataset, in its order.

    Raises:
        UnreadableDocuments: it has several splits, no such column, or no text in it.
    """
    if isinstance(dataset, Mapping):
        dataset = only_split(dataset, name, "pass one of them, such as dataset['train']")
    columns = dataset.column_names
    if columns is not None:  # an iterable dataset may not know them
        dataset = dataset.select_columns([column_of(columns, field, name)])
    for number, record in enumerate(dataset):
        yield document_of(record, field, f"{name}:{number}", f"record {number} of {name}")


def is_saved_dataset(folder: Path) -> bool:
    """Whether ``save_to_disk`` wrote a folder."""
    return any(os.path.isfile(folder / name) for name in SAVED)


def saved_documents(folder: Path, field: str) -> Iterator[Document]:
    """The documents of a folder that ``save_to_disk`` wrote, memory-mapped.

    Raises:
        MissingPackage: `datasets` is not installed.
        UnreadableDocuments: it is damaged, or holds several splits.
    """
    library = datasets_library()
    try:
        found = library.load_from_disk(str(folder))
    except Exception as error:  # of `datasets` and pyarrow
        raise UnreadableDocuments(
            f"The dataset in {shown(str(folder))} cannot be loaded: {first_line(error)}. Save it again."
        ) from error
    splits = " or ".join(str(folder / split) for split in found) if isinstance(found, Mapping) else ""
    yield from dataset_documents(only_split(found, str(folder), splits), field, folder.name)
