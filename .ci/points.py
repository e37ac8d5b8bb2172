"""The points of the matrix: an interpreter and the versions it gets, as `.ci/matrix.toml` and `pyproject.toml` say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

EXTRAS = ("train", "eval", "plot")  # what users install; the tools of the tests are taken as pip has them


@dataclass(frozen=True)
class Point:
    """One environment.

    Attributes:
        name: of it.
        python: version of the interpreter, ``"3.11"``.
        base: ``"constraints"`` or ``"floors"``, see the head of `.ci/matrix.toml`; or ``"registry"``, the newest that
            the package registry has, beside the torch of constraints.txt.
        pins: requirements ``name==version`` that replace those of the base.
        free: packages that keep no version of the base.
    """

    name: str
    python: str
    base: str
    pins: tuple[str, ...] = ()
    free: tuple[str, ...] = ()

    def constraints(self, root: Path) -> str:
        """The text of the constraints file of this environment."""
        lines = {"constraints": pinned, "floors": floors, "registry": torch_alone}[self.base](root)
        replaced = {canonical(name) for name in (*self.pins, *self.free)}
        kept = [line for line in lines if canonical(line) not in replaced]
        return "\n".join([*self.pins, *kept]) + "\n"


def canonical(requirement: str) -> str:
    """The name in a requirement, as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=;]", requirement)[0]).lower()


def pinned(root: Path) -> Iterator[str]:
    """The requirements of constraints.txt, markers included."""
    for line in (root / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield line


def torch_alone(root: Path) -> Iterator[str]:
    """The requirement of torch in constraints.txt: of all else pip takes the newest."""
    return (line for line in pinned(root) if canonical(line) == "torch")


def without_upper_bounds(pyproject: str) -> str:
    """The text of a pyproject.toml whose requirements have no upper bounds."""
    return re.sub(r"(>=[\w.]+),<[\w.]+", r"\1", pyproject)


def floors(root: Path) -> Iterator[str]:
    """Every requirement of a user at the lowest version pyproject.toml allows."""
    return (f"{name}=={version}" for name, version in lower_bounds(project(root)).items())


def lower_bounds(described: dict[str, Any]) -> dict[str, str]:
    """Package and lowest version allowed, of the requirements and of the extras for users."""
    needed = [*described["dependencies"]]
    for extra in EXTRAS:
        needed += described["optional-dependencies"][extra]
    return {canonical(need): re.search(r">=\s*([\w.]+)", need)[1] for need in needed}


def number(version: str) -> list[int]:
    """A version as numbers, to be compared."""
    return [int(part) for part in re.findall(r"\d+", version)]


def project(root: Path) -> dict[str, Any]:
    """The table ``[project]`` of pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def declared(root: Path) -> tuple[list[Point], dict[str, list[str]]]:
    """The points, and the arguments of pytest for each suite."""
    table = tomllib.loads((root / ".ci" / "matrix.toml").read_text(encoding="utf-8"))
    points = [Point(**{key: tuple(v) if isinstance(v, list) else v for key, v in p.items()}) for p in table["points"]]
    return points, table["suites"]
