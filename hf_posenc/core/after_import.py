"""Call a function once a module has been imported, without importing it (a post-import hook)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, call: Callable[[], None]) -> None:
    """Run ``call`` after the top-level module ``name`` was imported; at once, if it is already."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Finder(name, call))


class _Finder(MetaPathFinder):
    """Finds one module by the other finders, and gives it a loader that calls back."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self.name, self.call = name, call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the module waited for; None for every other, which the other finders then look for."""
        if fullname != self.name:
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self)
        return spec


class _CallingLoader(Loader):
    """A loader that calls back after the module has run; a spec alone may be asked for without an import."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self.loader, self.finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The loader's own."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module under its own loader, and call back."""
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
            self.finder.call()
