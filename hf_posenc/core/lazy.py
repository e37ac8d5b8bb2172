"""Lazy exports of a package: a name imports its module on first use (PEP 562)."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from hf_posenc.errors import MissingPackage

HOSTS = {"transformers": "transformers", "peft": "peft", "accelerate": "accelerate", "lm_eval": "lm-eval"}
"""Packages that are reached into, and what they are installed as."""

INSTALL = {
    "transformers": "pip install transformers", "peft": "pip install 'hf-posenc[train]'",
    "accelerate": "pip install accelerate", "lm_eval": "pip install 'hf-posenc[eval]'",
}  # fmt: skip
Lost = (ImportError, AttributeError)


@contextmanager
def explained_imports() -> Iterator[None]:
    """Say which package lacks a name, where an installed one is not of the versions that this package is tested with.

    As a decorator, in all that a function calls.

    Raises:
        HostChanged: this package, or one of these, imports a name of them that is not there, or reads an attribute of
            their modules and classes, or a private one of their objects.
        MissingPackage: it imports one that is not installed.
    """
    try:
        yield
    except Lost as error:
        name, needed_by = lost_name(error), {"hf_posenc": "hf-posenc", **HOSTS}.get(reader(error))
        if name is None or needed_by is None:
            raise
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise MissingPackage(f"This needs {HOSTS[name]}, which is not installed. {INSTALL[name]}") from error
        from hf_posenc.core.tested_versions import host_changed

        raise host_changed(HOSTS[name], f"a name that {needed_by} needs ({str(error).partition(' (')[0]})") from error


def lost_name(error: ImportError | AttributeError) -> str | None:
    """The package of these that lacks what could not be imported or read; None where it is none of them."""
    if isinstance(error, ImportError):
        modules = [error.name or ""]
    elif isinstance(error.obj, ModuleType):
        modules = [error.obj.__name__]
    elif isinstance(error.obj, type) or str(error.name).startswith("_"):
        cls = error.obj if isinstance(error.obj, type) else type(error.obj)
        modules = [one.__module__ for one in cls.__mro__]
    else:
        return None
    return next((top for one in modules if (top := one.partition(".")[0]) in HOSTS), None)


def reader(error: BaseException) -> str:
    """The package whose code could not import or read a name."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    readers = [
        str(frame.f_globals.get("__package__") or frame.f_globals.get("__name__")).partition(".")[0]
        for frame in frames
        if frame.f_code.co_name not in ("__getattr__", "__getattribute__")
    ]
    return next((name for name in reversed(readers) if name != "importlib"), "")


def lazy_exports(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Build ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names load lazily.

    The package also imports the names under ``TYPE_CHECKING``, since type checkers cannot follow ``__getattr__``.

    Args:
        package: ``__name__`` of the package.
        homes: full module name → names exported from it.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def module_getattr(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with explained_imports():
            return getattr(import_module(home_of[name]), name)

    return module_getattr, lambda: sorted(home_of), sorted(home_of)
