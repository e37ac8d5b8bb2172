"""Names of a package that load the module they live in when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy_exports(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names load lazily.

    The package imports the same names under ``TYPE_CHECKING``, for type checkers, which cannot follow this.

    Args:
        package: its ``__name__``.
        homes: full module name to the names that are exported from it.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def module_getattr(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home_of[name]), name)

    return module_getattr, lambda: sorted(home_of), sorted(home_of)
