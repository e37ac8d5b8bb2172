"""The import statements of the package as a graph, read from the syntax trees: nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "hf_posenc"
SOURCES = {"hf_posenc": PACKAGE, "patches": f"{PACKAGE}.patches", "eval": f"{PACKAGE}.eval"}
"""Folders of the repository, and the packages they are installed as."""

Arrow = tuple[str, str]


@dataclass(frozen=True)
class Module:
    """One source file.

    Attributes:
        name: below the package, such as ``attention.routes.decode``; empty for the package itself.
        tree: its syntax tree.
        is_package: whether it is an ``__init__.py``.
    """

    name: str
    tree: ast.Module
    is_package: bool

    @property
    def folder(self) -> str:
        """The folder at the package's root; empty for a file that stands there."""
        return self.name.partition(".")[0]


@cache
def modules() -> Mapping[str, Module]:
    """All source files by name."""
    found: dict[str, Module] = {}
    for folder, package in SOURCES.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            words = [*package.split("."), *file.relative_to(ROOT / folder).with_suffix("").parts]
            is_package = words[-1] == "__init__"
            name = ".".join(words[1:-1] if is_package else words[1:])
            found[name] = Module(name, ast.parse(file.read_text(encoding="utf-8")), is_package)
    return found


def imports(module: Module) -> Iterator[str]:
    """Yield the modules of this package that a module imports, at the top of the file or inside a function."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            wanted = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (known(name) for name in wanted if name.split(".")[0] == PACKAGE)


def known(dotted: str) -> str:
    """Module that a dotted name belongs to: the longest prefix that is a file."""
    name = dotted.partition(".")[2]
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name


@cache
def file_arrows() -> frozenset[Arrow]:
    """Imports between files; the package's ``__init__.py``, which imports everything lazily, is left out."""
    return frozenset(
        (module.name, name) for module in modules().values() for name in imports(module)
        if module.name and name and name != module.name
    )  # fmt: skip


def folder_arrows() -> frozenset[Arrow]:
    """Imports between folders."""
    pairs = ((a.partition(".")[0], b.partition(".")[0]) for a, b in file_arrows())
    return frozenset((a, b) for a, b in pairs if a != b)


def levels(arrows: frozenset[Arrow]) -> dict[str, int]:
    """Level of each file or folder: one above the highest level that it imports, 0 if it imports nothing.

    Raises:
        ValueError: the imports are circular.
    """
    below: dict[str, set[str]] = {}
    for a, b in arrows:
        below.setdefault(a, set()).add(b)
        below.setdefault(b, set())
    found: dict[str, int] = {}
    while len(found) < len(below):
        ready = {a for a, targets in below.items() if a not in found and targets <= found.keys()}
        if not ready:
            raise ValueError(f"The imports form a circle among {sorted(below.keys() - found.keys())}.")
        found |= {a: 1 + max((found[b] for b in below[a]), default=-1) for a in sorted(ready)}
    return found


def reduced(arrows: frozenset[Arrow]) -> frozenset[Arrow]:
    """Remove the arrows that a chain of other arrows implies."""

    @cache
    def reach(a: str) -> frozenset[str]:
        return frozenset().union(*({b} | reach(b) for x, b in arrows if x == a))

    return frozenset((a, b) for a, b in arrows if not any(b in reach(c) for x, c in arrows if x == a and c != b))


def summary(name: str) -> str:
    """First sentence of a module's docstring."""
    text = " ".join((ast.get_docstring(modules()[name].tree) or "").replace("`", "").split())
    return text.partition(". ")[0].removesuffix(".")
