"""The tables of the laboratory models of nine schemes are what was measured last."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

DOCS = Path(__file__).parents[2] / "docs"
sys.path[:0] = [str(DOCS)]

import make_laboratory  # noqa: E402
from evidence_tables import between_comments  # noqa: E402


def test_the_page_is_current() -> None:
    found = json.loads(make_laboratory.FIGURES.read_text(encoding="utf-8"))
    page = make_laboratory.PAGE.read_text(encoding="utf-8")
    tables = make_laboratory.tables(found)
    assert between_comments("starters.md", page, tables) == page, "Run python docs/make_laboratory.py."
    assert make_laboratory.PICTURE.exists()
    for table in tables.values():
        assert len({line.count("|") for line in table.splitlines()}) == 1, "every row has all columns"


def test_what_the_page_says_of_the_schemes() -> None:
    found = json.loads(make_laboratory.FIGURES.read_text(encoding="utf-8"))

    def share(scheme: str, task: str, length: int) -> float:
        return found[scheme][task][str(length)][0]

    retrieval = [task for task in make_laboratory.DRAWN if task not in ("posenc_copy", "posenc_induction")]
    assert all(value[0] >= 0.9 for task in make_laboratory.TASKS for value in [found["rope"][task]["256"]])
    for scheme in ("fox", "alibi"):
        within, beyond = (share(scheme, "posenc_ppl", length) for length in (256, 1024))
        assert abs(within - beyond) < 0.05
    for scheme in ("rope", "irope", "sinusoidal"):
        assert max(share(scheme, task, 512) for task in retrieval) < 0.2
    assert min(share("fox", task, 1024) for task in retrieval) > max(0.8, *(share("alibi", t, 1024) for t in retrieval))
