"""Ranks of a comparison: they need sure differences, the front is what nothing dominates, and the files hold both."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from hf_posenc.eval import compare
from hf_posenc.eval.results.ranking import Ranked, rankings, ranks, with_front
from hf_posenc.eval.results.rows import DocumentScore

from .conftest import TRAINED

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


def line(scheme: str, value: float | None, time: float | None, metric: str = "nll") -> Ranked:
    return Ranked(scheme, "t", metric, 512, value, None, None, 1, 1, 1, None, None, time, None)


@pytest.mark.parametrize(("metric", "sign"), [("nll", 1), ("acc", -1), ("gain", -1)])
def test_the_front_is_what_nothing_dominates(metric: str, sign: int) -> None:
    rng = random.Random(0)
    lines = [
        line(f"s{n}", rng.choice((0.2, 0.5, rng.uniform(0, 1))), rng.uniform(1, 2), metric=metric) for n in range(30)
    ]
    worst = {one.scheme: sign * one.value for one in lines if one.value is not None}
    time = {one.scheme: one.time or 0.0 for one in lines}
    expected = {
        p for p in worst
        if not any((time[q] <= time[p] and worst[q] < worst[p]) or (time[q] < time[p] and worst[q] <= worst[p])
                   for q in worst)
    }  # fmt: skip
    found = with_front([*lines, line("none", None, 1.0, metric), line("untimed", -9.0, None, metric)])
    assert {one.scheme for one in found if one.on_front} == expected
    assert 0 < len(expected) < 30


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
