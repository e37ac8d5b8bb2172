"""The page of findings is written from the stored results, and names every finding."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hf_posenc.insight.findings import all_findings

DOCS = Path(__file__).parents[2] / "docs"
sys.path[:0] = [str(DOCS)]

import make_findings  # noqa: E402


@pytest.fixture(scope="module")
def entries() -> dict[str, Any]:
    """The stored results."""
    return json.loads(make_findings.SNAPSHOT.read_text(encoding="utf-8"))


def test_page_is_current(entries: dict[str, Any]) -> None:
    assert make_findings.PAGE.read_text(encoding="utf-8") == make_findings.page(entries), (
        "Run: python docs/make_findings.py"
    )


def test_every_finding_has_a_row_and_every_result_an_interval(entries: dict[str, Any]) -> None:
    text = make_findings.PAGE.read_text(encoding="utf-8")
    assert all(f"`hf-posenc reproduce {name}`" in text for name in all_findings())
    for entry in entries.values():
        assert entry["verdict"] in ("reproduced", "not reproduced", "not decidable at this size")
        assert {one["outcome"] for one in entry["claims"]} <= {"holds", "reversed", "undecided"}


def test_results_of_the_quick_budget_are_refused() -> None:
    with pytest.raises(SystemExit, match="full budget"):
        make_findings.entry_of({"name": "zero_shot_order", "budget": "quick"})
