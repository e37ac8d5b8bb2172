"""The page of troubleshooting has a row for every error and warning of the package, and for nothing else."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from hf_posenc import errors

TEXT = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def rows() -> dict[str, bool]:
    """Errors of the page, and whether each is called a warning."""
    found = re.findall(r"^\| \[`(\w+)`\]\(#hf_posenc\.errors\.\w+\)( \(warning\))? \|", TEXT, re.MULTILINE)
    assert len(found) == len({name for name, _ in found}), "an error has two rows"
    return {name: bool(warning) for name, warning in found}


def public_errors() -> dict[str, bool]:
    """Errors and warnings that a caller can catch, and which are warnings; the base of all has no row."""
    classes = inspect.getmembers(errors, lambda one: inspect.isclass(one) and issubclass(one, Exception))
    own = [(name, one) for name, one in classes if one.__module__ == errors.__name__ and name != "PosEncError"]
    return {name: issubclass(one, Warning) for name, one in own}


def test_every_error_has_a_row() -> None:
    assert rows() == public_errors()
    assert len(rows()) > 50
