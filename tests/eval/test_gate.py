"""Intervals against published tables, and the gate of retrieval tasks, which the lower limit of one opens."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest

from hf_posenc.eval import compare
from hf_posenc.eval.report.page import page_html
from hf_posenc.eval.results.comparison import interval
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


# The 97.5 % points of Student's t, as printed in any table of it (NIST/SEMATECH e-Handbook, section 1.3.6.7.2).


def row(n: int, metric: str = "nll", value: float = 2.0, stderr: float | None = 0.1) -> Row:
    return Row("m", "s", "t", 1, None, metric, value, stderr, n)


@pytest.mark.parametrize(("n", "far"), [(3, 0.5615), (8, 0.3244), (16, 0.1936), (100, 0.0370)])
def test_where_all_documents_agree(n: int, far: float) -> None:
    """Wilson's upper limit of no success in n, from 1.96² / (n + 1.96²)."""
    assert interval(row(n, "acc", 0.0, 0.0)) == pytest.approx((0.0, far), abs=1e-4)
    assert interval(row(n, "acc", 1.0, 0.0)) == pytest.approx((1.0 - far, 1.0), abs=1e-4)
    assert interval(row(n, "nll", 0.0, 0.0)) == (0.0, 0.0)  # a loss is no share


@pytest.mark.parametrize("metric", ["acc", "match"])
def test_a_share_lies_between_none_and_all(metric: str) -> None:
    assert interval(row(8, metric, 0.9, 0.3)) == (pytest.approx(0.9 - 2.365 * 0.3, rel=1e-3), 1.0)
    assert interval(row(8, metric, 0.1, 0.3)) == (0.0, pytest.approx(0.1 + 2.365 * 0.3, rel=1e-3))
    low, _ = interval(row(8, "nll", 0.1, 0.3))
    assert low < 0.0
    assert interval(row(8, "ppl", 0.9, 0.3))[1] > 1.0


def test_too_few_documents_have_none() -> None:
    assert interval(row(2)) is None
    assert interval(row(3)) is not None
    assert interval(row(16, stderr=None)) is None


@pytest.mark.parametrize("metric", ["ppl", "word_perplexity"])
@pytest.mark.parametrize(("loss", "error"), [(2.0, 0.1), (6.0, 2.5)])
def test_that_of_a_perplexity_is_the_exponential_of_that_of_the_loss(metric: str, loss: float, error: float) -> None:
    low, high = interval(row(8, "nll", loss, error))
    value = math.exp(loss)
    assert interval(row(8, metric, value, value * error)) == pytest.approx((math.exp(low), math.exp(high)))
