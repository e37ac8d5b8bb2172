"""One file of evidence: made from the leaderboard, and what `advise`, docs/choose.md and the README begin with."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hf_posenc import advise
from hf_posenc.insight.advise.evidence import SEARCHED, ZERO_SHOT, zero_shot_candidates
from hf_posenc.insight.advise.measured_rows import FILE, measured_evidence
from hf_posenc.insight.leaderboard import read_leaderboard
from hf_posenc.schemes.entry import UNPATCHED

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "docs")]

import make_evidence  # noqa: E402

LONGEST = 1024


def first_row(page: Path) -> str:
    """The scheme in the first row of a page's table of measurements."""
    table = page.read_text(encoding="utf-8").partition("<!-- measured: begin -->")[2].partition("<!-- measured: end")[0]
    return re.findall(r"^\| \[`?(\w+)`?\]", table, re.MULTILINE)[0]


def test_the_file_is_that_of_the_leaderboard() -> None:
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    made = json.loads(json.dumps(make_evidence.evidence_of(read_leaderboard(make_evidence.BOARD))))
    assert stored == made, "Run: python docs/make_evidence.py"
    board = json.loads(make_evidence.BOARD.read_text(encoding="utf-8"))
    values = {
        (line["scheme"], line["task"]): line["scores"][-1]["value"]
        for line in board["lines"]
        if line["model"] == "starter:llama"
    }
    for name, row in measured_evidence().items():
        assert row.loss.value == values[name, "posenc_ppl"]
        assert row.passkeys.value == values[name, "posenc_passkey"]
        assert f"--schemes {name} " in row.loss.command
        assert "--factor-per-length" not in row.loss.command


@pytest.mark.parametrize("page", make_evidence.PAGES)
def test_tables_are_in_step(page: str) -> None:
    path = make_evidence.PAGES[page]
    text = path.read_text(encoding="utf-8")
    assert make_evidence.filled(page, text) == text, "Run: python docs/make_evidence.py"
    edited = text.replace("3.04", "3.03")
    assert make_evidence.filled(page, edited) != edited  # control: an edited number is noticed


def test_all_three_begin_with_one_scheme() -> None:
    advised = [one.scheme for one in advise("starter:llama", LONGEST).zero_shot]
    tables = {page: first_row(path) for page, path in make_evidence.PAGES.items()}
    assert set(tables.values()) == {next(iter(measured_evidence())), advised[0]}
    assert len(set(tables.values())) == 1


def test_measured_ones_come_first_and_what_found_nothing_last() -> None:
    zero_shot = [one for one in advise("starter:llama", LONGEST).zero_shot if one.kept == LONGEST]
    found = [one.evidence is not None and one.evidence.finds for one in zero_shot]
    assert found == sorted(found, reverse=True)
    assert {True, False} == set(found)
    orders = [one.evidence.order for one in zero_shot if one.evidence is not None and one.evidence.finds]
    assert orders == sorted(orders)
    assert [one.scheme for one in zero_shot if not (one.evidence and one.evidence.finds)] == ["ntk"]


def test_finding_passkeys_is_being_surely_above_the_unpatched_model() -> None:
    rows = measured_evidence()
    assert not rows[UNPATCHED].finds
    assert not rows["window"].finds  # whose loss is the lowest of all
    assert rows["window"].loss.value == min(row.loss.value for row in rows.values())
    assert all(row.finds == (row.passkeys.low > rows[UNPATCHED].passkeys.high) for row in rows.values())


def test_candidates_are_published_or_found_passkeys() -> None:
    found = {row.scheme for row in measured_evidence().values() if row.finds}
    published = {shown.scheme for shown in ZERO_SHOT}
    assert {shown.scheme for shown in zero_shot_candidates()} == published | (found - set(SEARCHED))


def test_an_order_follows_the_numbers() -> None:
    """Control: with other numbers the same rule gives another order."""
    row = measured_evidence()["rerope"]
    worse = replace(row, passkeys=replace(row.passkeys, first=row.passkeys.first + 1))
    assert row.order < worse.order
    assert row.order < replace(row, loss=replace(row.loss, value=row.loss.value + 0.02)).order
    assert row.order == replace(row, loss=replace(row.loss, value=row.loss.value + 0.0001)).order
    assert row.order < replace(row, prefill=2.0).order


def test_text_says_what_was_measured_and_what_is_published() -> None:
    text = " ".join(str(advise("starter:llama", LONGEST)).split())
    assert "measured at 4 × on starter:llama: loss 3.04, 100 % of passkeys; published: Llama-2-13B" in text
    assert "with default options instead of these" in text  # of self_extend, whose group follows its authors' rule
    longer = str(advise("starter:llama", 16 * LONGEST))
    assert "measured at 4 ×" in longer
    assert "not to 64 ×" in longer


def test_encoders_and_tables_have_no_measured_evidence() -> None:
    for starter in ("gpt2", "bert"):
        advice = advise(f"starter:{starter}", LONGEST)
        assert all(one.evidence is None for one in advice.recommendations)
