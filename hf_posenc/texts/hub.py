"""Datasets of the Hugging Face hub, named on a command line as ``hub:owner/name:train``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_posenc.errors import MissingPackage, UnreadableDocuments, first_line, shown

PREFIX = "hub:"


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
            UnreadableDocuments: it is none of these.
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
        MissingPackage: it is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingPackage("Datasets need the package datasets. pip install 'hf-posenc[train]'") from error
    return datasets
