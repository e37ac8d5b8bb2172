"""The stored table of properties is of every scheme, and what is measured today."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path[:0] = [str(DOCS), str(DOCS / "_ext")]

import make_pictures  # noqa: E402
import scheme_gallery  # noqa: E402
import scheme_pages  # noqa: E402

from hf_posenc.insight.properties import PROPERTIES, measure  # noqa: E402

RECORDS = {record.name: record for record in scheme_pages.built_in()}
STORED = json.loads((DOCS / "properties.json").read_text(encoding="utf-8"))


def test_stored_properties_are_of_every_scheme() -> None:
    assert {name.partition(" (")[0] for name in STORED} == set(RECORDS)
    assert all(set(row) == set(PROPERTIES) for row in STORED.values()), "Run: python docs/make_properties.py"


@pytest.mark.parametrize("name", ["alibi", "learned", "self_extend"])
def test_stored_properties_are_current(name: str) -> None:
    (row,) = measure([name]).values()
    answers = {key: cell.holds for key, cell in row.items()}
    assert answers == {key: cell["holds"] for key, cell in STORED[name].items()}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "irope" else pytest.mark.slow) for name in make_pictures.OF_SCHEMES]
)
def test_a_command_of_the_gallery_draws(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is shown there under the picture."""
    pytest.importorskip("matplotlib", reason="an extra")
    monkeypatch.setattr(scheme_gallery, "FOLDER", tmp_path)
    assert f"../pictures/scheme-{name}.png" not in scheme_gallery.gallery([RECORDS[name]])
    made = make_pictures.picture(f"scheme-{name}")
    make_pictures.make(made.words, tmp_path / made.file)
    assert (tmp_path / made.file).read_bytes().startswith(b"\x89PNG")
    page = scheme_gallery.gallery([RECORDS[name]])
    assert f"../pictures/{made.file}" in page
    assert f"`hf-posenc {made.words}`" in page
