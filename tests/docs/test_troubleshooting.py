"""The page of troubleshooting has a row for every error and warning of the package, and for nothing else."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from hf_posenc import errors

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"


def test_every_error_has_a_row() -> None:
    classes = inspect.getmembers(errors, lambda one: inspect.isclass(one) and issubclass(one, Exception))
    public = {name for name, one in classes if one.__module__ == errors.__name__} - {"PosEncError"}
    warned = {name for name in public if issubclass(getattr(errors, name), Warning)}
    rows = re.findall(r"^\| `(\w+)`( \(warning\))? \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(public)
    assert {name for name, warning in rows if warning} == warned
