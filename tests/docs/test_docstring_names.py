"""Names of this package in docstrings exist: `hf_posenc.module.name` leads a reader to something."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

from hf_posenc.patches.registry import GROUP as ENTRY_POINTS

ROOT = Path(__file__).parents[2]
FOLDERS = ("hf_posenc", "patches", "eval")
NAME = re.compile(r"`(hf_posenc(?:\.[A-Za-z_]\w*)+)(?:\(\))?`")


def documented(source: str) -> Iterator[str]:
    """The docstrings of a module, and what stands below its constants."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def found() -> dict[str, str]:
    """Every name to a file whose docstrings have it."""
    return {
        name: str(file.relative_to(ROOT))
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        for text in documented(file.read_text(encoding="utf-8"))
        for name in NAME.findall(text)
    }


def exists(name: str) -> bool:
    try:
        resolve_name(name)
    except AttributeError:
        return False
    return True


def test_names_in_docstrings_exist() -> None:
    pytest.importorskip("lm_eval", reason="an extra")
    names = found()
    assert len(names) > 50
    assert {name: file for name, file in names.items() if name != ENTRY_POINTS and not exists(name)} == {}
