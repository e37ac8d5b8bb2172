"""Pages of schemes: measured numbers are those of the committed results, links lead to pages, pictures are optional."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path[:0] = [str(DOCS), str(DOCS / "_ext")]

import scheme_evidence  # noqa: E402
import scheme_gallery  # noqa: E402
import scheme_links  # noqa: E402
import scheme_pages  # noqa: E402
from make_pictures import picture  # noqa: E402

from hf_posenc.insight.properties import PROPERTIES, measure  # noqa: E402

RECORDS = {record.name: record for record in scheme_pages.built_in()}
STORED = json.loads((DOCS / "properties.json").read_text(encoding="utf-8"))
LINK = re.compile(r"\]\(([\w./-]+\.md)")


@pytest.mark.parametrize("name", RECORDS)
def test_every_page_has_its_sections_and_its_links_lead_somewhere(name: str) -> None:
    text = scheme_pages.scheme_page(RECORDS[name], DOCS / "schemes")
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    expected = ["Formula", "Options", "Use", "Properties", "Measured", "Cost", "Neighbours", "Cite", "Code"]
    assert titles == [title for title in expected if title in titles]
    assert set(expected) - set(titles) <= {"Cost", "Neighbours"}
    assert text.count("```{math}") == len(RECORDS[name].formula.split("\n\n"))
    for target in LINK.findall(text.partition("## Code")[0]):
        if target == "../families.md":  # written with the site
            continue
        scheme = Path(target).stem
        assert scheme in RECORDS if "/" not in target else (DOCS / "schemes" / target).resolve().exists(), target


def test_scores_are_those_of_the_leaderboard() -> None:
    text = scheme_evidence.evidence(RECORDS["yarn"])
    rows = [row for row in scheme_evidence.leaderboard() if (row["scheme"], row["metric"]) == ("yarn", "nll")]
    assert len(rows) == 3
    for row in rows:
        value, low, high = (float(row[name]) for name in ("value", "low", "high"))
        assert f"{value:.3f} ({low:.3f}–{high:.3f})" in text
    assert f"{float(rows[-1]['prefill_time_ratio']):.2f} (" in text.partition("## Cost")[2]


def test_a_scheme_without_a_row_says_why() -> None:
    text = scheme_evidence.evidence(RECORDS["fire"])
    assert "it needs training" in text
    assert "## Cost" not in text


def test_findings_are_those_that_compare_the_scheme() -> None:
    entries = json.loads((DOCS / "findings.json").read_text(encoding="utf-8"))
    said = [one["says"] for one in entries["alibi_extrapolation"]["claims"] if "alibi" in one["says"]]
    assert said
    text = scheme_evidence.findings_table(RECORDS["alibi"])
    assert all(claim in text for claim in said)
    assert "randomized_positions" not in text
    assert scheme_evidence.schemes_of({"better": "rope+randpos", "worse": "pi, 10 steps"}) == {"rope", "randpos", "pi"}


def test_stored_properties_are_of_every_scheme() -> None:
    assert {name.partition(" (")[0] for name in STORED} == set(RECORDS)
    assert all(set(row) == set(PROPERTIES) for row in STORED.values()), "Run: python docs/make_properties.py"


@pytest.mark.parametrize("name", ["alibi", "learned", "self_extend"])
def test_stored_properties_are_current(name: str) -> None:
    (row,) = measure([name]).values()
    answers = {key: cell.holds for key, cell in row.items()}
    assert answers == {key: cell["holds"] for key, cell in STORED[name].items()}


def test_schemes_are_related_where_either_names_the_other() -> None:
    related = {name: set(scheme_links.related(record)) for name, record in RECORDS.items()}
    assert {"ntk_parts", "dynamic_yarn"} <= related["yarn"]
    assert all(name in related[other] for name, others in related.items() for other in others)
    assert scheme_links.named_in_text('``slopes="learned"``, ``window`` and `own`') == {
        "host"
    }  # options are no schemes
    assert "rerope" in scheme_links.same_kind(RECORDS["dca"])
    assert scheme_links.same_kind(RECORDS["host"]) == []


def test_derivations_are_linked_from_the_schemes_that_they_are_about() -> None:
    assert "[](../derivations/yarn.md)" in scheme_links.links(RECORDS["yarn"])
    assert "derivations" not in scheme_links.links(RECORDS["mrope"])


def test_the_gallery_shows_the_pictures_that_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheme_gallery, "FOLDER", tmp_path)
    records = list(RECORDS.values())
    assert "make_pictures.py schemes" in scheme_gallery.gallery(records)
    for name in ("alibi", "yarn"):
        (tmp_path / picture(f"scheme-{name}").file).write_bytes(b"")
    text = scheme_gallery.gallery(records)
    assert re.findall(r"\{figure\} \S+/scheme-(\w+)\.png", text) == ["alibi", "yarn"]
    assert "[rope](rope.md)" in text.partition("Without a picture: ")[2]
