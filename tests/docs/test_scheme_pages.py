"""The stored table of properties is of every scheme, and what is measured today."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path[:0] = [str(DOCS), str(DOCS / "_ext")]
sys.path.append(str(DOCS.parent / "examples" / "lessons"))  # for `properties`

import scheme_pages  # noqa: E402
from properties import PROPERTIES, measure  # noqa: E402

RECORDS = {record.name: record for record in scheme_pages.built_in()}
STORED = json.loads((DOCS / "properties.json").read_text(encoding="utf-8"))


def test_stored_properties_are_of_every_scheme() -> None:
    assert {name.partition(" (")[0] for name in STORED} == set(RECORDS)
    assert all(set(row) == set(PROPERTIES) for row in STORED.values()), "Run: python docs/make_properties.py"


@pytest.mark.parametrize("name", ["alibi", "deberta", "learned", "self_extend"])
def test_stored_properties_are_current(name: str) -> None:
    (row,) = measure([name]).values()
    answers = {key: (cell.holds, cell.note) for key, cell in row.items()}
    assert answers == {key: (cell["holds"], cell["note"]) for key, cell in STORED[name].items()}
