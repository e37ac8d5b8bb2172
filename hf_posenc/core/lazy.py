"""Lazy exports of a package: a name imports its module on first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module

from hf_posenc.errors import MissingPackage

HOSTS = {"transformers": "transformers", "peft": "peft", "accelerate": "accelerate", "lm_eval": "lm-eval"}
"""Packages that are reached into, and what they are installed as."""

INSTALL = {
    "transformers": "pip install transformers", "peft": "pip install 'hf-posenc[train]'",
    "accelerate": "pip install accelerate", "lm_eval": "pip install 'hf-posenc[eval]'",
}  # fmt: skip


@contextmanager
def explained_imports() -> Iterator[None]:
    """Say which package is missing, or lacks a name that is imported from it; as a decorator, in all a function calls.

    Raises:
        HostChanged: one of `HOSTS` is installed, and not in a version that this package is tested with.
        MissingPackage: one of them is not installed.
    """
    try:
        yield
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        if name not in HOSTS:
            raise
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise MissingPackage(f"This needs {HOSTS[name]}, which is not installed. {INSTALL[name]}") from error
        from hf_posenc.core.tested_versions import host_changed

        raise host_changed(HOSTS[name], f"a name that is needed ({str(error).partition(' (')[0]})") from error


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
