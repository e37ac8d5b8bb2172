"""The gate of retrieval tasks: what the unpatched model cannot do at its trained length is said once."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from hf_posenc.eval import compare
from hf_posenc.eval.report.page import page_html
from hf_posenc.eval.results.effective_length import gate_of, gates, shown_metrics
from hf_posenc.eval.results.rows import Row
from hf_posenc.eval.results.store import Record

from .conftest import TRAINED


def record(share: float, stderr: float | None, n: int = 8, metric: str = "acc") -> Record:
    rows = [
        Row("m", "s", "posenc_vt", TRAINED, None, metric, share, stderr, n),
        Row("m", "s", "posenc_vt", TRAINED, 0.5, metric, 1.0, 0.0, n),  # one depth decides nothing
        Row("m", "s", "posenc_vt", TRAINED, None, "nll", 1.0, 0.1, n),
    ]
    return Record("k", "s", "posenc_vt", TRAINED, "done", "", rows, 1.0, {})


def test_the_lower_limit_of_the_interval_decides() -> None:
    stats = pytest.importorskip("scipy.stats", reason="comes with lm-eval")
    for share, stderr, n in ((0.0, 0.0, 8), (0.2, 0.1, 8), (0.2, 0.02, 8), (0.06, 0.004, 100), (0.06, 0.006, 100)):
        gate = gate_of(record(share, stderr, n), TRAINED, "m")
        low, high = (
            stats.t.interval(0.95, n - 1, share, stderr)
            if stderr
            else stats.binomtest(0, n).proportion_ci(method="wilson")
        )
        assert (gate.low, gate.high) == pytest.approx((max(0.0, low), high), rel=1e-2, abs=1e-9)
        assert gate.open == (low > 0.05)
    assert gate_of(record(1.0, 0.0), TRAINED, "m").open
    assert not gate_of(record(0.05, None), TRAINED, "m").open
    assert gate_of(record(0.3, None, metric="match"), TRAINED, "m").metric == "match"


def test_guessing_opens_no_gate() -> None:
    """One right answer of four is chance where four are to choose from, and an ability where none are."""
    for task, opens in (("posenc_vt", True), ("posenc_association", False)):
        assert gate_of(replace(record(0.26, 0.01, 400), task=task), TRAINED, "m").open == opens


def test_what_cannot_be_measured_closes_no_gate() -> None:
    refused = Record("k", "s", "posenc_vt", TRAINED, "refused", "Too short. Ask for more.", [], 0.0, {})
    gate = gate_of(refused, TRAINED, "m")
    assert gate.open
    assert gate.reason == "Too short. Ask for more."


@pytest.mark.slow
def test_compare_asks_the_unpatched_model_first(llama, tokenizer, tmp_path) -> None:
    """A random model finds no key; its loss of the answer is still reported, by length and depth."""
    options = {"tokenizer": tokenizer, "lengths": [2 * TRAINED], "keys": 3, "depths": [0.0, 1.0], "samples": 2}
    found = compare(llama, "yarn", out=tmp_path, tasks=["posenc_passkey", "posenc_ppl"], scored=8, **options)
    (gate,) = gates(found.about)
    assert (gate.task, gate.length, gate.open, gate.n) == ("posenc_passkey", TRAINED, False, 3)
    assert found.labels == ["yarn"]
    assert {row.scheme for row in found.rows} == {"yarn"}
    assert shown_metrics(found, "posenc_passkey", depth=True) == ["nll"]
    assert page_html(found).count("cross-entropy loss of the answer by length and depth") >= 1
    assert json.loads((tmp_path / "results.json").read_text())["about"]["gates"] == [asdict(gate)]
