"""One file of evidence: made from the leaderboard, and what `advise` begins with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hf_posenc import advise
from hf_posenc.insight.advise.evidence import FILE, measured_at, measured_for

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "docs")]

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
    assert set(others[:-1]) == {"dpe", "jet_long", "mrrope", "yarn+resonance"}, "published, and not measured"
    assert others[-1] == "ntk", "measured, and found nothing"
