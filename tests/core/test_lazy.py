"""Packages whose names load when they are first used tell type checkers of the same names, from the same modules."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = ("hf_posenc", "hf_posenc.extend", "hf_posenc.eval")


def for_type_checkers(package: str) -> dict[str, str]:
    """Name → the module that the source imports it from under TYPE_CHECKING."""
    tree = ast.parse(Path(str(import_module(package).__file__)).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in ast.walk(block) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: str(node.module) for node in imports for alias in node.names}


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_names_that_load_lazily(package: str) -> None:
    module, declared = import_module(package), for_type_checkers(package)
    assert declared.keys() == set(module.__all__) - {"__version__"}
    for name, home in declared.items():
        assert getattr(module, name) is getattr(import_module(home), name)
