"""Import a package from the source texts of its modules, for checkpoints that contain their code.

``hf_posenc_code.py`` in such a checkpoint is this file, followed by the texts. It imports only the standard library.
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

IN_TEXTS = "hf_posenc"  # name of the package in the texts
OWN_IMPORT = re.compile(rf"^(\s*from ){IN_TEXTS}(?=[. ])", re.MULTILINE)


class SourceFinder(MetaPathFinder, InspectLoader):
    """Find and load the modules of one package under a new name, and rename its imports from itself.

    With the name in the texts, it would conflict with an installed package or with another checkpoint.
    """

    def __init__(self, package: str, texts: Mapping[str, str]) -> None:
        """Store the name of the package, and the texts of its modules by name."""
        self.package, self.texts = package, texts

    def inside(self, fullname: str) -> str | None:
        """Name of a module inside the package; None if there is no text for it."""
        package, _, name = fullname.partition(".")
        return name if package == self.package and name in self.texts else None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Spec of a module of this package; None for other modules."""
        if self.inside(fullname) is None:
            return None
        spec = spec_from_loader(fullname, self, origin=self.file_of(fullname), is_package=self.is_package(fullname))
        if spec is not None:
            spec.has_location = True  # gives the module a `__file__`, as tracebacks and `inspect` expect
        return spec

    def is_package(self, fullname: str) -> bool:
        """Whether a module contains other modules."""
        return not self.inside(fullname) or any(name.startswith(f"{self.inside(fullname)}.") for name in self.texts)

    def file_of(self, fullname: str) -> str:
        """Path for tracebacks; there is no such file."""
        return f"{fullname.replace('.', '/')}{'/__init__' if self.is_package(fullname) else ''}.py"

    def get_source(self, fullname: str) -> str:
        """Original source text of a module."""
        name = self.inside(fullname)
        if name is None:
            raise ImportError(f"{fullname} is not part of this checkpoint's code.", name=fullname)
        return self.texts[name]

    def get_code(self, fullname: str) -> CodeType:
        """Compile a module after renaming its imports from the package."""
        text = OWN_IMPORT.sub(rf"\1{self.package}", self.get_source(fullname))
        return self.source_to_code(text, self.file_of(fullname))


def install(texts: Mapping[str, str]) -> str:
    """Make a package importable, and return its name, a digest of its texts. A second call does nothing."""
    digest = hashlib.sha256("\0".join(f"{name}\0{texts[name]}" for name in sorted(texts)).encode())
    package = f"posenc_{digest.hexdigest()[:16]}"
    if find_spec(package) is None:
        sys.meta_path.append(SourceFinder(package, texts))
    return package
