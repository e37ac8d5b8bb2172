"""Imports: names that import their module on first use (PEP 562), callbacks after an import, clear import errors."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hf_posenc.errors import MissingPackage

HOSTS = {"transformers": "transformers", "peft": "peft", "accelerate": "accelerate", "lm_eval": "lm-eval"}
"""Modules of other packages that this one uses → names of their distributions."""

INSTALL = {
    "transformers": "pip install transformers", "peft": "pip install 'hf-posenc[train]'",
    "accelerate": "pip install accelerate", "lm_eval": "pip install 'hf-posenc[eval]'",
}  # fmt: skip


@contextmanager
def explained_imports() -> Iterator[None]:
    """Name the package that is missing, or that lacks an imported name. Also a decorator, for all calls of a function.

    Raises:
        HostChanged: one of `HOSTS` lacks a name that is imported from it.
        MissingPackage: one of `HOSTS` is not installed.
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


def lazy_exports(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Build ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names load lazily.

    The names are those that its source imports under ``TYPE_CHECKING``, where type checkers read them: these cannot
    follow ``__getattr__``.
    """
    spec: Any = sys.modules[package].__spec__
    blocks = [node for node in ast.parse(spec.loader.get_source(package)).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    home_of = {alias.name: str(node.module) for node in imports for alias in node.names}

    def module_getattr(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with explained_imports():
            return getattr(import_module(home_of[name]), name)

    return module_getattr, lambda: sorted(home_of), sorted(home_of)


def after_import(name: str, call: Callable[[], None]) -> None:
    """Run ``call`` after the top-level module ``name`` is imported; at once if it is imported already."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _CallbackFinder(name, call))


class _CallbackFinder(MetaPathFinder):
    """Meta path finder that calls back after a module has run; the remaining finders find the module."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self.name, self.call = name, call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Spec of the module with the callback; None for other modules."""
        if fullname != self.name:
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                """Run the module, then call back: a spec may also be requested without an import."""
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self.call()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
