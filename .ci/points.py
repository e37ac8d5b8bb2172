"""Points of the matrix: an interpreter and its package versions, from `.ci/matrix.toml` and `pyproject.toml`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

EXTRAS = ("train", "eval", "plot")  # extras for users; pip chooses the versions of the test tools


@dataclass(frozen=True)
class Point:
    """One environment.

    Attributes:
        name: name of the point.
        python: version of the interpreter, ``"3.11"``.
        base: ``"constraints"`` or ``"floors"``, see the head of `.ci/matrix.toml`; or ``"registry"``, the newest
            versions in the package registry with the torch of constraints.txt.
        pins: requirements ``name==version`` that replace those of the base.
        free: packages whose version in the base is dropped.
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
        remaining = [line for line in lines if canonical(line) not in replaced]
        return "\n".join([*self.pins, *remaining]) + "\n"


def canonical(requirement: str) -> str:
    """Normalised package name of a requirement."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=;]", requirement)[0]).lower()


def pinned(root: Path) -> Iterator[str]:
    """The requirements of constraints.txt, markers included."""
    for line in (root / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield line


def torch_alone(root: Path) -> Iterator[str]:
    """The requirement of torch in constraints.txt; pip takes the newest version of all other packages."""
    return (line for line in pinned(root) if canonical(line) == "torch")


def without_upper_bounds(pyproject: str) -> str:
    """The text of a pyproject.toml whose requirements have no upper bounds."""
    return re.sub(r"(>=[\w.]+),<[\w.]+", r"\1", pyproject)


def floors(root: Path) -> Iterator[str]:
    """Every requirement for users at the lowest version that pyproject.toml allows."""
    return (f"{name}=={version}" for name, version in lower_bounds(project(root)).items())


def lower_bounds(described: dict[str, Any]) -> dict[str, str]:
    """Lowest allowed version of each package in the requirements and in the extras for users."""
    requirements = [*described["dependencies"]]
    for extra in EXTRAS:
        requirements += described["optional-dependencies"][extra]
    return {canonical(one): re.search(r">=\s*([\w.]+)", one)[1] for one in requirements}


def number(version: str) -> list[int]:
    """The numbers of a version, for comparison."""
    return [int(part) for part in re.findall(r"\d+", version)]


def project(root: Path) -> dict[str, Any]:
    """The table ``[project]`` of pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def declared(root: Path) -> tuple[list[Point], dict[str, list[str]]]:
    """The points, and the arguments of pytest for each suite."""
    table = tomllib.loads((root / ".ci" / "matrix.toml").read_text(encoding="utf-8"))
    points = [Point(**{key: tuple(v) if isinstance(v, list) else v for key, v in p.items()}) for p in table["points"]]
    return points, table["suites"]
