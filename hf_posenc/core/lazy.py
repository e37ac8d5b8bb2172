"""Lazy exports of a package: a name imports its module on first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


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
        return getattr(import_module(home_of[name]), name)

    return module_getattr, lambda: sorted(home_of), sorted(home_of)
