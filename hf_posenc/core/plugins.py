"""Entry points of other packages, loaded once in a process."""

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

_LOCK = RLock()  # another thread waits until all plugins are loaded; a plugin that lists names while it loads does not
_LOADED: set[str] = set()
_FAILURES: dict[str, dict[str, str]] = {}  # by group and name


def load_entry_points(group: str, accept: Callable[[str, Any], None]) -> None:
    """Import what installed packages name under ``group``; importing runs their decorators. Once in a process.

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
    """A sentence about each plugin of ``group`` that could not be loaded, each after a blank; empty where all were."""
    return "".join(f" {message}" for message in _FAILURES.get(group, {}).values())


def has_failed(group: str, name: str) -> bool:
    """Whether a plugin of that name could not be loaded."""
    return name in _FAILURES.get(group, {})


_IMPORTED: dict[Path, str] = {}  # by what they are, as they were named


def imported_files() -> tuple[str, ...]:
    """The files imported so far, as they were named; a command that needs them names them again."""
    return tuple(_IMPORTED.values())


def import_file(path: str) -> None:
    """Run a file as a module, once; importing runs its decorators. Its folder is searched for what it imports itself.

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
        said = f"{type(error).__name__}: {str(error).rstrip('.')}"
        raise CannotImport(f"Importing {path!r} failed ({said}). Correct the file.") from error
    _IMPORTED[file] = path


def is_another_module(name: str, file: Path) -> bool:
    """Whether a module of that name is loaded, or is found elsewhere: an installed package that is loaded later."""
    if name in sys.modules:
        return True
    found = importlib.util.find_spec(name)
    return found is not None and (found.origin is None or Path(found.origin).resolve() != file)
