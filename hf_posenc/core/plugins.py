"""Entry points of other packages, loaded once in a process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from threading import RLock
from typing import Any

_LOCK = RLock()  # another thread waits until all plugins are loaded; a plugin that lists names while it loads does not
_LOADED: set[str] = set()
_FAILURES: dict[str, dict[str, str]] = {}  # by group and name


def load_entry_points(group: str, accept: Callable[[str, Any], None]) -> None:
    """Import what installed packages name under ``group``; importing runs their decorators. Once in a process.

    A plugin that cannot be imported or accepted is logged, and the others are loaded.

    Args:
        group: of entry points.
        accept: called with the name and the object of each, to register what no decorator has registered.
    """
    with _LOCK:
        if group in _LOADED:
            return
        _LOADED.add(group)
        for entry in _entries(group):
            try:
                accept(entry.name, entry.load())
            except Exception as error:  # a broken plugin must not break `list`
                distribution = entry.dist.name if entry.dist else "an unknown distribution"
                message = (
                    f"The {group} plugin {entry.name!r} of {distribution} cannot be loaded "
                    f"({str(error).rstrip('.')}). Update or remove it."
                )
                _FAILURES.setdefault(group, {})[entry.name] = message
                logging.getLogger(__name__).warning(message)


def plugin_failures(group: str) -> str:
    """A sentence about each plugin of ``group`` that could not be loaded, each after a blank; empty where all were."""
    return "".join(f" {message}" for message in _FAILURES.get(group, {}).values())


def has_failed(group: str, name: str) -> bool:
    """Whether a plugin of that name could not be loaded."""
    return name in _FAILURES.get(group, {})


def forget_entry_points() -> None:
    """Reload entry points at the next request."""
    with _LOCK:
        _LOADED.clear()
        _FAILURES.clear()


def _entries(group: str) -> Iterator[EntryPoint]:
    return iter(entry_points(group=group))
