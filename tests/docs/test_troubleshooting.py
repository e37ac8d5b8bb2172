"""The page of troubleshooting has an entry for every error and warning of the package, and for nothing else."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from hf_posenc import errors

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
PARTS = ("**Happened:**", "**Usual cause:**", "**Do:**")


def entries(text: str) -> dict[str, str]:
    """Each entry by its heading."""
    found = re.findall(r"^### (\w+)\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)
    assert len(found) == len(dict(found)), "an error has two entries"
    return dict(found)


def public_errors() -> set[str]:
    """Errors and warnings that a caller can catch; the base of all has no entry."""
    classes = inspect.getmembers(errors, lambda one: inspect.isclass(one) and issubclass(one, Exception))
    return {name for name, one in classes if one.__module__ == errors.__name__} - {"PosEncError"}


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_every_error_has_an_entry(text: str) -> None:
    assert entries(text).keys() == public_errors()


def test_every_entry_says_what_why_and_what_to_do(text: str) -> None:
    assert not {name: part for name, entry in entries(text).items() for part in PARTS if entry.count(part) != 1}


def test_a_missing_entry_is_noticed(text: str) -> None:
    """Control of both tests."""
    shorter = text.replace("### NoEffect", "### SomethingElse")
    assert public_errors() - entries(shorter).keys() == {"NoEffect"}
    assert len(public_errors()) > 50


def test_the_warnings_are_counted(text: str) -> None:
    warnings = {name for name in public_errors() if issubclass(getattr(errors, name), Warning)}
    assert len(warnings) == 11, "the page says eleven"
    assert all("A warning:" in entries(text)[name] for name in warnings)
