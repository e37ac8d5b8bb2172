"""Lazy exports of a package: a name imports its module on first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module

from hf_posenc.errors import HostChanged

HOSTS = {"transformers": "transformers", "peft": "peft", "accelerate": "accelerate", "lm_eval": "lm-eval"}
"""Packages that are reached into, and what they are installed as."""


@contextmanager
def explained_imports() -> Iterator[None]:
    """Say which package lacks a name, where an installed one is not of the versions that this package is tested with.

    Raises:
        HostChanged: a name that is imported from such a package is not there.
    """
    try:
        yield
    except ImportError as error:
        host = HOSTS.get((error.name or "").partition(".")[0])
        if host is None or (isinstance(error, ModuleNotFoundError) and error.name in HOSTS):  # it is not installed
            raise
        from importlib.metadata import version

        from hf_posenc.core.tested_versions import tested_versions

        said = str(error).partition(" (")[0]
        raise HostChanged(
            f"{host} {version(host)} lacks a name that hf-posenc needs ({said}). "
            f"Install {host}{tested_versions(host)}; if one of these is installed, report this."
        ) from error


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
