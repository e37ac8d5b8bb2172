"""Find the names of other packages that the source of this package uses; `docs/make_seams.py` lists them."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from hf_posenc.core.lazy import HOSTS

ROOT = Path(__file__).resolve().parents[1]
IN_WORDS = re.compile(rf"((?:{'|'.join(HOSTS)})(?:\.\w+)*):([\w.]+)")  # "peft:PeftModel.add_adapter"
PRIVATE = re.compile(r"_[a-zA-Z]\w+")
ON_INSTANCES = (r"self\.{0}\b[^=\n]* = ", r"\w\.{0} = ", r"""(?:attr\(\w+, |pop\()["']{0}["']""")
Name = tuple[str, str]  # a module, and a dotted name in it, such as a class and its method


@dataclass
class Use:
    """The files that use a name, and the keywords with which they call it."""

    files: set[str] = field(default_factory=set)
    keywords: set[str] = field(default_factory=set)


def seams() -> dict[Name, Use]:
    """All names of other packages that are used, with their uses."""
    found: dict[Name, Use] = defaultdict(Use)
    files = [file for folder in ("hf_posenc", "patches", "eval") for file in sorted((ROOT / folder).rglob("*.py"))]
    trees = {file.relative_to(ROOT).as_posix(): list(nodes(ast.parse(file.read_text("utf-8")))) for file in files}
    for file, tree in trees.items():
        for name, keywords in names(tree):
            found[name].files.add(file)
            found[name].keywords |= keywords
    values = {name: value_of(name) for name in sorted(found)}
    classes = [value for value in values.values() if isinstance(value, type)]
    modules = dict.fromkeys(name[0] for name in values)
    bases = {node.name: node.bases for tree in trees.values() for node in tree if isinstance(node, ast.ClassDef)}
    for file, tree in trees.items():
        homes = (home_of(attribute, classes, modules) for attribute in private_attributes(tree))
        for name in (*filter(None, homes), *overridden(tree, bases, classes)):
            found[name].files.add(file)
    return found


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a syntax tree, without those that only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from nodes(node)


def names(tree: list[ast.AST]) -> Iterator[tuple[Name, set[str]]]:
    """Yield the names of other packages that a file uses, with keywords: imports, attributes, and names in strings."""
    local: dict[str, Name] = {}
    for node in tree:
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in HOSTS:
            local.update({one.asname or one.name: (str(node.module), one.name) for one in node.names})
        elif isinstance(node, ast.Import):
            local.update({top: (top, "") for top in {one.name.partition(".")[0] for one in node.names} & HOSTS.keys()})
        elif isinstance(node, ast.Constant) and (words := IN_WORDS.fullmatch(str(node.value))):
            yield (words[1], words[2]), set()
    yield from ((name, set()) for name in local.values() if name[1])
    for node in tree:
        called = node.func if isinstance(node, ast.Call) else node
        if isinstance(node, (ast.Attribute, ast.Call)) and (name := dotted(called, local)) and name[1]:
            yield name, {str(one.arg) for one in getattr(node, "keywords", ()) if one.arg}


def dotted(node: ast.AST, local: dict[str, Name]) -> Name | None:
    """Name of another package that an expression of names and attributes refers to."""
    if isinstance(node, ast.Name):
        return local.get(node.id)
    owner = dotted(node.value, local) if isinstance(node, ast.Attribute) else None
    return owner and (owner[0], f"{owner[1]}.{node.attr}".lstrip("."))  # type: ignore[attr-defined]


def value_of(name: Name) -> Any:
    """Object that a name refers to; None for a submodule that is not loaded, as RULER's would load data.

    Raises:
        AttributeError: the installed version does not have the name.
    """
    value: Any = import_module(name[0])
    for part in name[1].split("."):
        if hasattr(value, "__path__") and not hasattr(value, part) and find_spec(f"{value.__name__}.{part}"):
            return None
        value = getattr(value, part)
    return value


def private_attributes(tree: list[ast.AST]) -> set[str]:
    """Attributes with a leading underscore, also in strings, that are not torch's."""
    read = {node.attr for node in tree if isinstance(node, ast.Attribute)}
    written = {str(node.value) for node in tree if isinstance(node, ast.Constant)}
    return {one for one in read | written if PRIVATE.fullmatch(one) and not hasattr(nn.Module(), one)} - {"_abc_impl"}


def home_of(attribute: str, classes: Iterable[type], modules: Iterable[str]) -> Name | None:
    """Class of another package that has an attribute, or module that sets it on an instance."""
    lines = [[one for one in cls.__mro__ if one.__module__.partition(".")[0] in HOSTS] for cls in classes]
    for line in lines:
        if having := [cls for cls in line if attribute in vars(cls)]:
            return having[-1].__module__, f"{having[-1].__qualname__}.{attribute}"
    loaded = dict.fromkeys([*(cls.__module__ for line in lines for cls in line), *modules])
    sources = {one: inspect.getsource(module) for one in loaded if getattr(module := sys.modules[one], "__file__", "")}
    found = (one for form in ON_INSTANCES for one in sources if re.search(form.format(attribute), sources[one]))
    return next(((one, attribute) for one in found), None)


def overridden(tree: list[ast.AST], bases: dict[str, list[ast.expr]], classes: Iterable[type]) -> Iterator[Name]:
    """Yield the methods of other packages' classes that classes of a file override."""
    by_name = {cls.__name__: cls for cls in classes}

    def hosts(name: str) -> list[type]:
        own = [by_name[name]] if name in by_name else []
        return own + [cls for base in bases.get(name, ()) for cls in hosts(ast.unparse(base).rpartition(".")[2])]

    for node in tree:
        if isinstance(node, ast.ClassDef):
            mro = [one for cls in hosts(node.name) for one in cls.__mro__]
            for method in (one.name for one in node.body if isinstance(one, ast.FunctionDef)):
                owner = next((one for one in mro if method in vars(one)), nn.Module)
                if not method.startswith("__") and owner.__module__.partition(".")[0] in HOSTS:
                    yield owner.__module__, f"{owner.__qualname__}.{method}"
