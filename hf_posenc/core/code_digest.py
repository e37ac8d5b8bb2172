"""Digest of the code of a scheme: what its classes compile to, and the functions and constants that they refer to.

The code is taken from memory and not from files, so that the digest belongs to what runs: a class defined in a notebook
has no file, and a file edited after it was imported does not describe the class. Followed are the schemes of this
package and code that no package manager installed, and what is in one package with a scheme's class; every other
package is known by its version. Lists and dictionaries are left out, as they may be caches that fill up: what they
change is seen in the terms of the scheme, of which `compare` has a digest of their own.
"""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterable
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

OWN = "hf_posenc.schemes."
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
STANDARD = Path(sysconfig.get_path("stdlib")).resolve()
PACKAGES = {"site-packages", "dist-packages"}


def code_digest(classes: Iterable[type]) -> str:
    """Digest of the code of classes; equal in every process of one version of Python."""
    found = CodeDescriptions()
    roots = {cls.__module__.partition(".")[0] for cls in classes} - {"hf_posenc"}
    found.roots = frozenset(roots)
    return hashlib.blake2b(json.dumps([found.described(cls) for cls in classes]).encode(), digest_size=16).hexdigest()


class CodeDescriptions:
    """Descriptions of objects as JSON values; each function and class is described once."""

    def __init__(self) -> None:
        self.seen: dict[int, str] = {}
        self.roots: frozenset[str] = frozenset()

    def described(self, value: Any) -> Any:
        """Describe a value: constants by themselves, functions and classes by their code, all else by its type."""
        if isinstance(value, PLAIN):
            return repr(value)
        if isinstance(value, tuple):
            return [self.described(inner) for inner in value]
        if isinstance(value, frozenset):
            return sorted(json.dumps(self.described(inner)) for inner in value)
        if isinstance(value, CodeType):
            return self.code(value)
        if isinstance(value, (FunctionType, type)):
            return self.once(value)
        if isinstance(value, ModuleType):
            return value.__name__
        return [type(value).__qualname__, *(self.described(inner) for inner in wrapped(value))]

    def once(self, value: Any) -> Any:
        """Describe a function or class; only its name where it was described already or is of another package."""
        name = self.name_of(value)
        if id(value) in self.seen or not self.follows(value.__module__):
            return name
        self.seen[id(value)] = name
        if isinstance(value, type):
            members = [(key, inner) for key, inner in sorted(vars(value).items()) if not is_hidden(key, inner)]
            return [name, self.described(value.__bases__), self.described(tuple(members))]
        cells = tuple(cell.cell_contents for cell in value.__closure__ or () if not is_empty(cell))
        keywords = tuple(sorted((value.__kwdefaults__ or {}).items()))
        used = self.used(value.__code__, value.__globals__)
        return [name, self.described((value.__code__, value.__defaults__, keywords, cells)), used]

    def name_of(self, value: FunctionType | type) -> str:
        """Name with its module; without it where the code itself is described, as a file may be moved or renamed."""
        module = value.__module__
        renamed = module.partition(".")[0] != "hf_posenc" and self.follows(module)
        return value.__qualname__ if renamed else f"{module}.{value.__qualname__}"

    def code(self, code: CodeType) -> Any:
        """Describe compiled code, without file names and line numbers."""
        constants = [self.described(constant) for constant in code.co_consts]
        return [code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, constants]

    def used(self, code: CodeType, around: dict[str, Any]) -> Any:
        """Describe the globals that code refers to by name, and those of modules that it refers to."""
        names = sorted(all_names(code))
        found = [(name, around[name]) for name in names if name in around]
        modules = [value for _, value in found if isinstance(value, ModuleType) and self.follows(value.__name__)]
        inner = [(name, vars(module)[name]) for module in modules for name in names if name in vars(module)]
        return [[name, self.described(value)] for name, value in found + inner]

    def follows(self, module: str) -> bool:
        """Whether code of a module is described, rather than known by the version of its package."""
        if module.partition(".")[0] == "hf_posenc":
            return module.startswith(OWN) and module.count(".") > 2  # the rest is in `package_digest`
        if module.partition(".")[0] in self.roots:
            return True
        return module == "__main__" or is_loose(module)


@lru_cache(maxsize=1024)
def is_loose(module: str) -> bool:
    """Whether a module has a file that is neither of the standard library nor of an installed package."""
    name = getattr(sys.modules.get(module), "__file__", None)
    file = None if name is None else Path(name).resolve()
    return file is not None and not PACKAGES.intersection(file.parts) and STANDARD not in file.parents


def wrapped(value: Any) -> Iterable[Any]:
    """The functions inside a property, a method or a decorated function."""
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    if isinstance(value, cached_property):
        return (value.func,)
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    return (value.__wrapped__,) if isinstance(getattr(value, "__wrapped__", None), FunctionType) else ()


def all_names(code: CodeType) -> set[str]:
    """Names that code and the functions inside it refer to."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(all_names, inner))


def is_hidden(name: str, value: Any) -> bool:
    """Whether an attribute of a class computes nothing: its documentation, its place in a file, its slots."""
    return name.startswith("__") and not isinstance(value, (FunctionType, classmethod, staticmethod))


def is_empty(cell: Any) -> bool:
    """Whether a variable of an outer function has no value yet."""
    try:
        return cell.cell_contents is None
    except ValueError:
        return True
