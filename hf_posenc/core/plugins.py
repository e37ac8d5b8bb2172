"""Plugins: entry points of other packages, and files of the user, each imported once per process."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from threading import RLock
from typing import Any

from hf_posenc.errors import CannotImport

_LOCK = RLock()  # other threads wait until all plugins are loaded; a plugin may list names while it loads
_LOADED: set[str] = set()
_FAILURES: dict[str, dict[str, str]] = {}  # by group and name


def load_entry_points(group: str, accept: Callable[[str, Any], None]) -> None:
    """Import the entry points of installed packages in ``group``, once per process; importing runs their decorators.

    A plugin that cannot be imported or accepted is logged, and the others are loaded.
    """
    with _LOCK:
        if group in _LOADED:
            return
        _LOADED.add(group)
        for entry in entry_points(group=group):
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
    """One sentence per plugin of ``group`` that could not be loaded, each after a space; empty without failures."""
    return "".join(f" {message}" for message in _FAILURES.get(group, {}).values())


def has_failed(group: str, name: str) -> bool:
    """Whether the plugin of this name failed to load."""
    return name in _FAILURES.get(group, {})


_IMPORTED: dict[Path, str] = {}  # resolved path → path as the caller wrote it


def imported_files() -> tuple[str, ...]:
    """Files imported so far, with the paths that callers wrote, for commands that need them again."""
    return tuple(_IMPORTED.values())


def import_file(path: str) -> None:
    """Import a file as a module, once; importing runs its decorators. Its folder is added to the module search path.

    Raises:
        CannotImport: there is no such file, it has the name of another module, or it raises an error or exits.
    """
    file = Path(path).resolve()
    if file in _IMPORTED:
        return
    name = file.stem
    spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise CannotImport(f"{path!r} is no Python file. Name one that registers a scheme or an adapter.")
    if not name.isidentifier() or is_another_module(name, file):
        raise CannotImport(
            f"{path!r} cannot be imported as {name!r}, which is taken or not a valid name. Rename the file."
        )
    sys.path.insert(0, str(file.parent))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        reason = f"{type(error).__name__}: {str(error).rstrip('.')}"
        raise CannotImport(f"Importing {path!r} failed ({reason}). Correct the file.") from error
    _IMPORTED[file] = path


def is_another_module(name: str, file: Path) -> bool:
    """Whether another module of this name is loaded, or would be found in an installed package."""
    if name in sys.modules:
        return True
    spec = importlib.util.find_spec(name)
    return spec is not None and (spec.origin is None or Path(spec.origin).resolve() != file)
