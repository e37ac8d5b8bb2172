"""Import a package from the texts of its modules: how a checkpoint that brings its code is loaded.

This file is the beginning of ``hf_posenc_code.py`` in such a checkpoint; the texts follow. It imports Python alone.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import CodeType, ModuleType

IN_TEXTS = "hf_posenc"  # what the texts call their package
OWN_IMPORT = re.compile(rf"^(\s*from ){IN_TEXTS}(?=[. ])", re.MULTILINE)


class SourceFinder(MetaPathFinder, InspectLoader):
    """Finds and loads the modules of one package, whose imports from itself lead to itself.

    Its name is not that in the texts, so that an installed package, or another checkpoint's, is in nobody's way.
    """

    def __init__(self, package: str, texts: Mapping[str, str]) -> None:
        """Keep what to load."""
        self.package, self.texts = package, texts

    def inside(self, fullname: str) -> str | None:
        """The name of a module inside the package; None where it is not one of the texts."""
        package, _, name = fullname.partition(".")
        return name if package == self.package and name in self.texts else None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of this package; None for every other."""
        if self.inside(fullname) is None:
            return None
        spec = spec_from_loader(fullname, self, origin=self.file_of(fullname), is_package=self.is_package(fullname))
        if spec is not None:
            spec.has_location = True  # gives the module a `__file__`, as tracebacks and `inspect` expect
        return spec

    def is_package(self, fullname: str) -> bool:
        """Whether other modules are inside this one."""
        return not self.inside(fullname) or any(name.startswith(f"{self.inside(fullname)}.") for name in self.texts)

    def file_of(self, fullname: str) -> str:
        """The path a module is said to have; there is no such file."""
        return f"{fullname.replace('.', '/')}{'/__init__' if self.is_package(fullname) else ''}.py"

    def get_source(self, fullname: str) -> str:
        """The text of a module as it was written."""
        name = self.inside(fullname)
        if name is None:
            raise ImportError(f"{fullname} is not part of this checkpoint's code.", name=fullname)
        return self.texts[name]

    def get_code(self, fullname: str) -> CodeType:
        """The text compiled, with its imports renamed."""
        text = OWN_IMPORT.sub(rf"\1{self.package}", self.get_source(fullname))
        return self.source_to_code(text, self.file_of(fullname))


def install(texts: Mapping[str, str]) -> str:
    """Make a package importable, and return its name, which its content decides. Calling it again does nothing."""
    digest = hashlib.sha256("\0".join(f"{name}\0{texts[name]}" for name in sorted(texts)).encode())
    package = f"posenc_{digest.hexdigest()[:16]}"
    if find_spec(package) is None:
        sys.meta_path.append(SourceFinder(package, texts))
    return package
