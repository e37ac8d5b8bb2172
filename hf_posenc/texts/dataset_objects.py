"""Documents of the library `datasets`: its objects, folders of ``save_to_disk``, and ``hub:OWNER/NAME:SPLIT``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hf_posenc.errors import MissingPackage, UnreadableDocuments, first_line, shown
from hf_posenc.texts.document import Document, column_of, document_of

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict


DatasetObject: TypeAlias = "Dataset | DatasetDict | IterableDataset | IterableDatasetDict"
"""An object of the `datasets` library, which is not loaded for it."""
SAVED = ("state.json", "dataset_dict.json")
"""Files by which a folder is known that ``save_to_disk`` wrote: of a dataset, and of several splits."""
PREFIX = "hub:"


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
        UnreadableDocuments: The folder is damaged, or holds several splits.
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
        """The dataset: downloaded once and memory-mapped, or streamed.

        Raises:
            MissingPackage: `datasets` is not installed.
            UnreadableDocuments: it cannot be loaded, or has several splits and none is chosen.
        """
        load_dataset = datasets_library().load_dataset
        try:
            found = load_dataset(self.name, self.config, split=self.split, streaming=streaming)
        except Exception as error:  # the library raises a dozen types, some of them of other libraries
            raise UnreadableDocuments(
                f"The dataset {str(self)!r} cannot be loaded: {first_line(error)}. Check its name and the network."
            ) from error
        return only_split(found, str(self), f"{self}:SPLIT")


def only_split(found: Any, name: str, advice: str) -> Any:
    """The only split of a dataset; a dataset without splits as it is.

    Raises:
        UnreadableDocuments: there are several, or none.
    """
    if not isinstance(found, Mapping):
        return found
    if len(found) != 1:
        if not found:
            raise UnreadableDocuments(f"The dataset {shown(name)} has no splits: it is empty. Name another dataset.")
        raise UnreadableDocuments(f"The dataset {shown(name)} has the splits {', '.join(found)}. Choose one: {advice}.")
    return next(iter(found.values()))


def datasets_library() -> Any:
    """The `datasets` library.

    Raises:
        MissingPackage: The library is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingPackage("Datasets need the package datasets. pip install 'hf-posenc[train]'") from error
    return datasets
