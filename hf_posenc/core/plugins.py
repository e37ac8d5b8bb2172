"""Entry points of other packages, loaded once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


@lru_cache(maxsize=2)
def load_entry_points(group: str) -> None:
    """Import what installed packages name under ``group``; importing runs their decorators. Once a process.

    A plugin that cannot be imported is logged, and the others are loaded.
    """
    for entry in _entries(group):
        try:
            entry.load()
        except Exception as error:  # a broken plugin must not take `list` down with it
            distribution = entry.dist.name if entry.dist else "an unknown distribution"
            logging.getLogger(__name__).warning(
                f"The {group} plugin {entry.name!r} of {distribution} cannot be loaded ({error}). Update or remove it."
            )


def _entries(group: str) -> Iterator[EntryPoint]:
    return iter(entry_points(group=group))
