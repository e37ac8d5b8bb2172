"""Ranks need significant differences; effective context length by RULER's rule, or within 5 % for losses."""

from __future__ import annotations

import itertools
import json
from math import log
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from hf_posenc.eval import compare
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.effective_length import effective_lengths, loss_bounds
from hf_posenc.eval.results.ranking import rankings, ranks
from hf_posenc.eval.results.rows import DocumentScore, Row
from hf_posenc.eval.results.store import Record

from .conftest import TRAINED
from .made_up import made_up

pytest.importorskip("matplotlib")
SMALL: dict[str, Any] = {
    "samples": 4, "scored": 16, "keys": 3, "lengths": [TRAINED, 2 * TRAINED], "depths": (0.25,),
}  # fmt: skip


def documents(values: np.ndarray) -> list[DocumentScore]:
    return [DocumentScore("t", f"d{n}", f"d{n}", 512, None, "nll", float(v)) for n, v in enumerate(values)]


def test_ranks_are_those_of_corrected_paired_tests() -> None:
    """Against scipy's paired t-test and Holm's correction by its definition."""
    rng = np.random.default_rng(0)
    hard = rng.normal(size=16)
    losses = {
        name: hard + shift + 0.1 * rng.normal(size=16) for name, shift in zip("abcd", (0, 0, 0.2, 2), strict=True)
    }
    pairs = list(itertools.combinations(losses, 2))
    raw = [ttest_rel(losses[a], losses[b]).pvalue for a, b in pairs]
    order = np.argsort(raw)
    sure: list[tuple[str, str]] = []
    for rank, index in enumerate(order):
        if raw[index] * (len(raw) - rank) >= 0.05:
            break
        a, b = pairs[index]
        sure.append((a, b) if losses[a].mean() < losses[b].mean() else (b, a))
    expected = {name: (1 + sum(b == name for _, b in sure), 4 - sum(a == name for a, _ in sure)) for name in losses}
    found = ranks({name: documents(values) for name, values in losses.items()}, higher_is_better=False)
    assert found == expected
    assert found["d"] == (4, 4)
    assert found["a"][1] == found["b"][1] == 2
    turned = ranks({name: documents(values) for name, values in losses.items()}, higher_is_better=True)
    assert turned["d"] == (1, 1)


def test_chance_has_no_winner() -> None:
    """Twelve schemes that are equally good: the best mean is first of none in 20 tables; uncorrected it often is."""
    lucky = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        found = ranks({f"s{n}": documents(rng.normal(size=12)) for n in range(12)}, higher_is_better=False)
        lucky += any(last < 12 for _, last in found.values())
    assert lucky <= 3  # 5 % of tables are expected


@pytest.mark.slow
def test_ranks_are_made_of_the_same_cells(llama, tokenizer, tmp_path: Path) -> None:
    plain = compare(llama, "unpatched,pi,window:size=64", tokenizer=tokenizer, out=tmp_path, **SMALL)
    assert rankings(plain) == {}
    assert "ranks" not in json.loads((tmp_path / "results.json").read_text())
    made = compare(llama, "unpatched,pi,window:size=64", tokenizer=tokenizer, out=tmp_path, rank=True, **SMALL)
    assert made.rows == plain.rows
    assert [record.seconds for record in made.records] == [record.seconds for record in plain.records]  # none anew
    found = rankings(made)
    assert {task: {one.scheme for one in lines} for task, lines in found.items()} == {
        task: {"unpatched", "pi", "window:size=64"} for task in ("posenc_ppl", "posenc_passkey")
    }
    for one in found["posenc_ppl"]:
        assert one.time is not None
        assert (one.time == 1.0) == (one.scheme == "unpatched")
        if one.behind is not None:
            assert one.behind.difference == pytest.approx(one.value - found["posenc_ppl"][0].value)
    stored = json.loads((tmp_path / "results.json").read_text())["ranks"]
    assert [one["scheme"] for one in stored] == [one.scheme for lines in found.values() for one in lines]


LENGTHS = (64, 128, 256, 512)


def made(metric: str, values: dict[str, tuple[float, ...]], stderr: float = 0.0, n: int = 40) -> Comparison:
    records = [
        Record(f"{label}{length}", label, "task", length, "done", "",
               [Row("m", label, "task", length, None, metric, value, stderr, n)], 0.0, {})
        for label, line in values.items() for length, value in zip(LENGTHS, line, strict=False)
    ]  # fmt: skip
    return made_up(records, trained_length=128)


def test_accuracies_follow_ruler() -> None:
    """85.6 %, wherever it is reached: at 64 tokens and again at 256."""
    found = effective_lengths(made("acc", {"yarn": (0.86, 0.855, 0.9, 0.3), "none": (0.1, 0.1, 0.1, 0.1)}))
    assert [(one.scheme, one.length, one.threshold) for one in found] == [("yarn", 256, 0.856), ("none", 0, 0.856)]


def test_losses_are_those_of_the_unpatched_model_at_its_trained_length() -> None:
    slack = log(1.05)
    found = effective_lengths(made("nll", {
        "unpatched": (3.1, 3.0, 4.0, 5.0), "yarn": (3.1, 3.0, 3.0 + slack - 1e-6, 3.0 + slack + 1e-6),
    }))  # fmt: skip
    assert [(one.scheme, one.length) for one in found] == [("unpatched", 128), ("yarn", 256)]
    assert found[1].threshold == 3.0 + slack
    refused = effective_lengths(made("nll", {"unpatched": (3.1,), "alibi": (3.1, 3.0)}))  # a table that ends
    assert [(one.scheme, one.length) for one in refused] == [("unpatched", 64), ("alibi", 128)]
    alone = effective_lengths(made("nll", {"yarn": (2.9, 2.5, 2.54, 2.6)}))  # its own loss at 128
    assert (alone[0].length, alone[0].threshold) == (256, 2.5 + slack)


def test_the_interval_is_that_of_the_score() -> None:
    (one,) = effective_lengths(made("acc", {"yarn": (0.99, 0.9, 0.84, 0.3)}, stderr=0.03))
    assert (one.length, one.low, one.high) == (128, 64, 256)  # t(39) · 0.03 = 0.061
    (one,) = effective_lengths(made("nll", {"yarn": (3.0, 3.0, 3.02, 3.1)}, stderr=0.02))  # ± 0.040, up to 3.049
    assert (one.length, one.low, one.high) == (256, 128, 256)


def test_losses_are_compared_document_by_document() -> None:
    """Eight documents of very different losses, each a little worse at 512: significantly within 5 % of perplexity."""
    comparison = made("nll", {"yarn": (3.0, 3.0, 3.0, 3.02)}, stderr=0.4, n=8)
    gains = [0.01, 0.03] * 4
    for record in comparison.records:
        worse = gains if record.length == 512 else [0.0] * 8
        scores = [
            DocumentScore("task", str(n), str(n), record.length, None, "nll", 1.0 + 4 * n / 7 + extra)
            for n, extra in enumerate(worse)
        ]
        object.__setattr__(record, "documents", scores)
    (one,) = effective_lengths(comparison)
    assert (one.length, one.low, one.high) == (512, 512, 512)
    row, reference = (next(r for r in comparison.rows if r.length == n) for n in (512, 128))
    half = 2.364624 * stdev(gains) / 8**0.5  # t of 7 degrees of freedom, from tables
    assert loss_bounds(comparison, row, reference)[1:] == pytest.approx((3.02 - half, 3.02 + half), abs=1e-6)
