"""What pyproject.toml allows is what `.ci/matrix` has tested, and what it packs is what there is."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

tomllib = pytest.importorskip("tomllib", reason="in the standard library from Python 3.11")

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / ".ci"))

import points  # noqa: E402
import versions_page  # noqa: E402

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
FOLDERS = {"hf_posenc": "hf_posenc", "patches": "hf_posenc.patches", "eval": "hf_posenc.eval"}
ROWS = versions_page.read_record(ROOT)


def minor(version: str) -> str:
    """``"3.11"`` of ``"3.11.7"``."""
    return ".".join(version.split(".")[:2])


def classified(project: dict[str, Any]) -> set[str]:
    """The Python versions that the classifiers name."""
    found = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in project["classifiers"])
    return {match[1] for match in found if match}


def disagreements(project: dict[str, Any], rows: dict[str, dict[str, Any]]) -> list[str]:
    """What pyproject.toml promises and the record of the matrix does not bear out, in words."""
    passed = [row for row in rows.values() if row.get("passed") and not row["failed"] and not row.get("error")]
    tested = {minor(row["python"]) for row in passed}
    found = []
    if classified(project) != tested:
        found.append(f"classifiers name Python {sorted(classified(project))}, tested are {sorted(tested)}")
    if project["requires-python"] != f">={min(tested, key=points.number, default='')}":
        found.append(f"requires-python is {project['requires-python']}, the oldest tested is another")
    oldest = [row["versions"] for row in passed if row["point"] == "oldest"]
    for name, bound in points.lower_bounds(project).items():
        if any(padded(versions.get(name, "0")) != padded(bound) for versions in oldest):
            found.append(f"{name} may be {bound}, which is not what the point `oldest` had")
    return found if oldest else [*found, "the point `oldest` has not passed"]


def padded(version: str) -> list[int]:
    """The first three numbers of a version."""
    return ([*points.number(version.split("+")[0]), 0, 0])[:3]


def test_every_claimed_version_was_tested() -> None:
    assert disagreements(PROJECT, ROWS) == [], "Run .ci/matrix"


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("classifiers", [*PROJECT["classifiers"], "Programming Language :: Python :: 3.99"], "3.99"),
        ("requires-python", ">=3.9", "requires-python"),
        ("dependencies", ["torch>=2.7", *PROJECT["dependencies"][1:]], "torch may be 2.7"),
    ],
)
def test_an_untested_claim_is_noticed(key: str, value: Any, word: str) -> None:
    """Control of the test above."""
    assert any(word in each for each in disagreements(PROJECT | {key: value}, ROWS))


def files(suffixes: str) -> Iterator[tuple[str, Path]]:
    """Package and path of every file of a kind."""
    for folder, package in FOLDERS.items():
        for file in (ROOT / folder).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts and re.fullmatch(suffixes, file.suffix):
                inner = file.parent.relative_to(ROOT / folder).parts
                yield ".".join((package, *inner)), file


def test_every_package_is_listed() -> None:
    listed = set(PYPROJECT["tool"]["setuptools"]["packages"])
    assert {package for package, _ in files(r"\.py")} <= listed | {"hf_posenc.starters"}


def test_every_data_file_is_covered() -> None:
    globs = PYPROJECT["tool"]["setuptools"]["package-data"]
    covered = {
        file
        for folder, package in FOLDERS.items()
        for pattern in globs.get(package, [])
        for file in (ROOT / folder).glob(pattern)
    }
    data = {file for _, file in files(r"(?!\.py[ci]?$).*")}
    assert data <= covered, sorted(data - covered)
