"""The wheel's list of contents against the folders; `.ci/run` builds the real one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"hf_posenc": "hf_posenc", "patches": "hf_posenc.patches", "eval": "hf_posenc.eval"}
tomllib = pytest.importorskip("tomllib", reason="in the standard library from Python 3.11")


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def files(suffixes: str) -> Iterator[tuple[str, Path]]:
    """Package and path of every file of a kind."""
    for folder, package in FOLDERS.items():
        for file in (ROOT / folder).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts and re.fullmatch(suffixes, file.suffix):
                inner = file.parent.relative_to(ROOT / folder).parts
                yield ".".join((package, *inner)), file


def test_every_package_is_listed(project: dict) -> None:
    listed = set(project["tool"]["setuptools"]["packages"])
    assert {package for package, _ in files(r"\.py")} <= listed | {"hf_posenc.starters"}


def test_every_data_file_is_covered(project: dict) -> None:
    globs = project["tool"]["setuptools"]["package-data"]
    covered = {
        file
        for folder, package in FOLDERS.items()
        for pattern in globs.get(package, [])
        for file in (ROOT / folder).glob(pattern)
    }
    data = {file for _, file in files(r"(?!\.py[ci]?$).*")}
    assert data <= covered, sorted(data - covered)
