"""One file of evidence: made from the leaderboard, and what `advise` begins with."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from hf_posenc import advise
from hf_posenc.insight.advise.candidates import reason_of
from hf_posenc.insight.advise.evidence import FILE, ZERO_SHOT, measured_at, measured_for, real_rows
from hf_posenc.schemes.entry import UNPATCHED

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "docs")]

import evidence_pictures  # noqa: E402
import evidence_tables  # noqa: E402
import make_evidence  # noqa: E402

LONGEST = 1024


def test_the_file_is_that_of_the_leaderboards() -> None:
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(make_evidence.evidence())), "Run: python docs/make_evidence.py"
    for board, factor in zip(make_evidence.BOARDS, (4.0, 8.0), strict=True):
        values = {(x["model"], x["scheme"], x["task"]): float(x["value"]) for x in make_evidence.board_rows(board)}
        rows = measured_at(factor)
        assert len(rows) > 10
        for row in rows:
            assert row.loss.value == values["starter:llama", row.scheme, "posenc_ppl"]
            assert row.passkeys.value == values["starter:llama", row.scheme, "posenc_passkey"]
            assert f"--schemes {row.scheme} " in row.loss.command


def test_a_factor_is_judged_by_the_next_larger_one() -> None:
    assert {measured_for(factor)["rerope"].factor for factor in (2, 4)} == {4.0}
    assert {measured_for(factor)["rerope"].factor for factor in (5, 8, 100)} == {8.0}
    assert measured_for(100)["lm_infinite"].factor == 4.0  # the largest it was measured at


def test_measured_ones_come_first_and_what_found_nothing_last() -> None:
    assert advise("starter:llama", LONGEST).zero_shot[0].scheme == measured_at(4.0)[0].scheme
    zero_shot = [one for one in advise("starter:llama", LONGEST).zero_shot if one.kept == LONGEST]
    found = [one.evidence is not None and one.evidence.finds for one in zero_shot]
    assert found == sorted(found, reverse=True)
    assert {True, False} == set(found)
    orders = [one.evidence.order for one in zero_shot if one.evidence is not None and one.evidence.finds]
    assert orders == sorted(orders)
    others = [one.scheme for one in zero_shot if not (one.evidence and one.evidence.finds)]
    assert set(others[:-1]) == {"dpe", "jet_long", "mrrope"}, "published, and not measured"
    assert others[-1] == "ntk", "measured, and found nothing"


@pytest.mark.parametrize("factor", [4, 8])
def test_the_order_is_that_of_the_page(factor: int) -> None:
    """Printed and as values, against the tables of docs/choose.md."""
    advice, page = advise("starter:llama", 256 * factor), (ROOT / "docs" / "choose.md").read_text(encoding="utf-8")
    table = page.partition("<!-- measured far" if factor == 8 else "<!-- measured: begin")[2].partition("<!--")[0]
    ranked = re.findall(r"^\| \[(\w+)\]", table, flags=re.MULTILINE)
    given = [one["scheme"] for one in advice.to_dict()["zero_shot"]]
    assert [scheme for scheme in given if scheme in ranked] == [scheme for scheme in ranked if scheme in given]
    text = str(advice).partition("Zero-shot")[2].partition("With training")[0]
    full, _, named = text.partition("  then ")
    printed = re.findall(r"^  \d  (\S+) ", full, flags=re.MULTILINE)
    printed += re.findall(r"(\w+)(?:\s+\(keeps [\d,]+\s+tokens\))?(?:,|\s+\(all)", named)
    assert printed == given
    assert printed.index("yarn") < printed.index("sinks"), "which finds no passkey"


@pytest.mark.parametrize("factor", [4.0, 8.0])
def test_finding_passkeys_is_being_surely_above_the_unpatched_model(factor: float) -> None:
    rows = {row.scheme: row for row in measured_at(factor)}
    assert not rows[UNPATCHED].finds
    assert not rows["window"].finds  # whose loss is lower than YaRN's, and at eight times the lowest of all
    assert rows["window"].loss.value < rows["yarn"].loss.value
    assert factor < 8 or rows["window"].loss.value == min(row.loss.value for row in rows.values())
    surely = {row.scheme for row in rows.values() if row.passkeys.low > rows[UNPATCHED].passkeys.high}
    assert {row.scheme for row in rows.values() if row.finds} == {s for s in surely if rows[s].passkeys.value > 0.5}


def test_more_schemes_and_lengths_of_a_real_model_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table and picture of three lengths, at one of which a scheme was not measured."""
    values = {
        (UNPATCHED, 8): (3.0, 4.0, 5.0), (UNPATCHED, 16): (6.0, 7.0, 8.0), (UNPATCHED, 32): (8.0, 9.5, 10.0),
        ("yarn", 8): (3.5, 4.5, 5.5), ("yarn", 32): (3.25, 3.5, 4.25),
    }  # fmt: skip
    losses = {cell: dict(zip("abc", found, strict=True)) for cell, found in values.items()}
    numbers = {(UNPATCHED, 8): {"a 0.5": 1.0, "a 0.9": 0.0}}
    monkeypatch.setattr(evidence_tables, "real_scores", lambda metric: losses if metric == "nll" else numbers)
    assert evidence_tables.real_table().splitlines()[2:] == [  # ± t(2) · SE: 4.303 · 0.3005 and 4.303 · 0.1667
        "| `yarn` | 4.50 | – | 3.67 | −0.33 (−1.63 … +0.96) | – · – · – |",
        "| unpatched | 4.00 | 7.00 | 9.17 | +5.17 (+4.45 … +5.88) | 1 of 2 · – · – |",
    ]
    evidence_pictures.draw_real_model(losses, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")


def test_a_real_model_is_cited_first() -> None:
    """Of a scheme that was measured on both models; nothing is said of one that was not."""
    (yarn,) = (shown for shown in ZERO_SHOT if shown.scheme == "yarn" and shown.kind == "rotation")
    real, bundled = real_rows()["yarn"], measured_for(4)["yarn"]
    reason = reason_of(yarn, real, bundled, by_rule=False)
    assert reason.index(str(real)) < reason.index(str(bundled)) < reason.index("published")
    assert real.loss < real.unpatched_loss
    assert real.found > real.unpatched_found
    assert real.model not in reason_of(yarn, None, bundled, by_rule=False)


def test_the_table_of_retrieval_is_that_of_the_ranks() -> None:
    """Recall counted here, against docs/choose.md."""
    rows = [
        json.loads(line) for line in (ROOT / "docs" / "real_encoder.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    page = (ROOT / "docs" / "choose.md").read_text(encoding="utf-8")
    table = page.partition("<!-- real encoder: begin -->")[2].partition("<!-- real encoder: end -->")[0]
    assert rows
    for row in rows:
        (line,) = [line for line in table.splitlines() if line.startswith(f"| {row['way']} |")]
        cell = line.split("|")[2 + ["passkey", "needle", "novels"].index(row["task"])]
        share = cell.split("·")[[512, 1024, 2048].index(row["length"])]
        ranks = [rank for of_document in row["ranks"] for rank in of_document]
        assert int(share) == round(100 * ranks.count(1) / len(ranks))
