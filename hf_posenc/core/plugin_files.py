"""Python files named by the user, imported so that the schemes and adapters in them are known by name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from hf_posenc.errors import CannotImport

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
        raise CannotImport(f"{path!r} cannot be imported as {name!r}, which is taken or no name. Rename the file.")
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
