"""Scores of documents and paired differences, recomputed with numpy, scipy's published formulas and lm-eval's means."""

from __future__ import annotations

import csv
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from hf_posenc.core.student_t import student_t
from hf_posenc.eval import compare, evaluate
from hf_posenc.eval.results.comparison import interval
from hf_posenc.eval.results.paired import Difference, holm, paired_differences
from hf_posenc.eval.results.rows import DocumentScore, document_scores, standard_error
from hf_posenc.eval.texts.measured_text import module_text

from .conftest import TRAINED

pytest.importorskip("matplotlib")

SMALL: dict[str, Any] = {"scored": 16, "keys": 3, "depths": (0.0, 1.0), "lengths": [TRAINED, 2 * TRAINED]}
values = st.floats(-10, 10)


@given(st.lists(st.tuples(values, st.sampled_from("abcdefg")), min_size=2, max_size=20))
def test_the_clustered_error_is_that_of_the_sandwich(drawn: list[tuple[float, str]]) -> None:
    """(X'X)⁻¹ (Σ_g X_g' u_g u_g' X_g) (X'X)⁻¹ for a regression on a constant, times G / (G − 1)."""
    scores, clusters = [value for value, _ in drawn], [name for _, name in drawn]
    error, count = standard_error(scores, clusters)
    groups = sorted(set(clusters))
    assert count == len(groups)
    if count < 2:
        assert error is None
        return
    x, y = np.ones((len(scores), 1)), np.array(scores)
    residuals = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    meat = sum(
        np.outer(g := x[np.array(clusters) == name].T @ residuals[np.array(clusters) == name], g) for name in groups
    )
    bread = np.linalg.inv(x.T @ x)
    expected = float(np.sqrt((bread @ meat @ bread)[0, 0] * count / (count - 1)))
    assert error == pytest.approx(expected, rel=1e-9, abs=1e-12)
    alone, _ = standard_error(scores, [str(number) for number in range(len(scores))])
    assert alone == pytest.approx(statistics.stdev(scores) / len(scores) ** 0.5, rel=1e-9, abs=1e-12)


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=12))
def test_holm_by_its_definition(ps: list[float | None]) -> None:
    """Sorted p-values times m, m − 1, …, made monotone; each comparison keeps its place."""
    found = holm(ps)
    known = sorted(p for p in ps if p is not None)
    for p, corrected in zip(ps, found, strict=True):
        if p is None:
            assert corrected is None
            continue
        last = max(number for number, other in enumerate(known) if other == p)
        expected = max(min(1.0, (len(known) - number) * known[number]) for number in range(last + 1))
        assert corrected == pytest.approx(expected, rel=1e-12)
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # Holm's own example form


def scores(task: str, metric: str, found: dict[str, float], clusters: dict[str, str] | None = None) -> list:
    return [
        DocumentScore(task, name, (clusters or {}).get(name, name), 64, None, metric, value)
        for name, value in found.items()
    ]


def test_pairs_are_of_the_same_document_whatever_the_order() -> None:
    rng = np.random.default_rng(0)
    hard = rng.normal(3, 1, 12)
    base = {f"d{i}": float(v) for i, v in enumerate(hard)}
    ours = {f"d{i}": float(v + 0.3 + e) for i, (v, e) in enumerate(zip(hard, rng.normal(0, 0.05, 12), strict=True))}
    shuffled = dict(sorted(ours.items(), reverse=True)) | {"only here": 99.0}
    (found,) = paired_differences(
        {"base": scores("t", "nll", base), "x": scores("t", "nll", shuffled)}, "base", {("t", "nll"): False}
    )
    differences = [ours[name] - base[name] for name in base]
    assert found.n == found.clusters == 12
    assert found.difference == pytest.approx(statistics.fmean(differences), rel=1e-12)
    half = 2.201 * statistics.stdev(differences) / 12**0.5  # the 97.5 % point of 11 degrees, as printed in tables
    assert (found.low, found.high) == pytest.approx((found.difference - half, found.difference + half), rel=1e-3)
    assert found.verdict == "worse"
    unpaired = (statistics.variance(base.values()) / 6) ** 0.5
    assert found.difference < 2 * unpaired  # control: the two means alone are undecided


def verdict_of(ours: list[float], base: list[float], higher: bool | None, metric: str = "nll") -> Difference:
    one, two = ({f"d{i}": v for i, v in enumerate(some)} for some in (ours, base))
    both = {"base": scores("t", metric, two), "x": scores("t", metric, one)}
    return paired_differences(both, "base", {("t", metric): higher})[0]


def test_what_is_sure_and_what_is_not() -> None:
    base = [1.0, 2.0, 3.0, 4.0, 5.0]
    lower = [0.5, 1.4, 2.5, 3.6, 4.5]
    assert verdict_of(lower, base, False).mark == "+"
    assert verdict_of(lower, base, True).mark == "−"
    assert verdict_of(lower, base, None).mark == "≠"
    assert verdict_of([1.5, 1.4, 3.5, 3.6, 5.1], base, False).mark == "?"
    assert verdict_of(lower[:2], base[:2], False).p is None  # two documents say nothing
    rounded = [value + 1e-8 * (1 + 0.01 * value) for value in base]
    assert verdict_of(rounded, base, False).p == 1.0  # float32 in another order, however regular
    same = verdict_of(base, base, False)
    assert (same.p, same.low, same.verdict) == (1.0, None, "undecided")


def test_documents_that_all_agree() -> None:
    """All keys lost: Agresti and Min's interval with four halves of a document more, by the 2 × 2 table."""
    none, every = [0.0] * 8, [1.0] * 8
    found = verdict_of(none, every, True, "acc")
    cells = np.array([[0.5, 0.5], [8.5, 0.5]])  # found by neither or both, by one of the two
    n, b, c = cells.sum(), cells[0, 1], cells[1, 0]
    error = math.sqrt((b + c) - (b - c) ** 2 / n) / n
    assert found.high == pytest.approx((b - c) / n + student_t(7) * error, rel=1e-12)
    assert found.low == -1.0
    assert (found.difference, found.verdict) == (-1.0, "worse")
    assert verdict_of(none[:3], every[:3], True, "acc").verdict == "undecided"  # control: three are too few
    fifth = verdict_of([0.3] * 3, [0.1] * 3, True, "acc")  # 0.3 − 0.1 is not 0.2 exactly, and its mean has a rounding
    assert fifth.low < 0.0 < 0.2 < fifth.high
    both = verdict_of(every, every, True, "acc")
    assert (both.p, both.low, both.high) == (1.0, -both.high, both.high)


@given(st.lists(st.tuples(st.sampled_from((0.0, 1.0)), st.sampled_from((0.0, 1.0))), min_size=3, max_size=30))
def test_right_and_wrong_answers_by_the_two_by_two_table(drawn: list[tuple[float, float]]) -> None:
    """Agresti and Min's interval for any table; one more answer that speaks for the leader makes it surer."""
    ours, base = map(list, zip(*drawn, strict=True))
    found = verdict_of(ours, base, True, "acc")
    table = np.full((2, 2), 0.5)
    for one, other in drawn:
        table[int(one), int(other)] += 1
    n, b, c = table.sum(), table[1, 0], table[0, 1]
    centre, half = (b - c) / n, student_t(len(drawn) - 1) * math.sqrt((b + c) - (b - c) ** 2 / n) / n
    if b == c:
        assert found.p == 1.0
    assert (found.low, found.high) == pytest.approx((max(-1.0, centre - half), min(1.0, centre + half)), abs=1e-12)
    same = [place for place, (one, other) in enumerate(drawn) if one == other == 0.0]
    if same and b > c:
        ours[same[0]] = 1.0
        assert verdict_of(ours, base, True, "acc").p < found.p


def test_depths_of_one_key_are_one_answer() -> None:
    """Each key three times, with the same answer: as sure as once."""
    right = {f"d{key}": float(key < 7) for key in range(9)}
    wrong = dict.fromkeys(right, 0.0)
    thrice = [
        {f"{name} {depth}": value for name, value in some.items() for depth in range(3)} for some in (right, wrong)
    ]
    clusters = {f"{name} {depth}": name for name in right for depth in range(3)}
    once, again = (
        paired_differences({"x": scores("t", "acc", a, keys), "base": scores("t", "acc", b, keys)}, "base", {})[0]
        for (a, b), keys in (((right, wrong), None), (thrice, clusters))
    )
    assert (again.low, again.high, again.p) == pytest.approx((once.low, once.high, once.p), rel=1e-9)
    assert again.clusters == once.clusters == 9


@pytest.fixture
def run(llama, tokenizer, tmp_path):
    def compared(schemes: str = "unpatched,pi,yarn", **given: Any) -> Any:
        return compare(llama, schemes, tokenizer=tokenizer, out=tmp_path, **{**SMALL, "samples": 6, **given})

    return compared


def test_documents_are_those_whose_mean_lm_eval_reports(llama, tokenizer) -> None:
    tasks = ["posenc_ppl", "posenc_passkey", "posenc_docs", "posenc_copy", "posenc_niah_single", "posenc_token_nll"]
    text = Dataset.from_dict({"text": [module_text("bisect") * 2, module_text("keyword") * 4]})
    lengths = [2 * TRAINED]
    given = {**SMALL, "lengths": lengths, "samples": 5, "text": text}
    found = evaluate(llama, tokenizer, tasks=tasks, **given)
    assert "samples" not in found.raw
    by_metric: dict[tuple[str, str], list[float]] = {}
    for score in found.documents:
        depth = "" if score.depth is None else f"_D{100 * score.depth:g}"
        name = f"{score.metric}_L{score.length}{depth}"
        by_metric.setdefault((score.task, name), []).append(score.value)
    reported = {
        (task, name.removesuffix(",none")): value
        for task, metrics in found.raw["results"].items()
        for name, value in metrics.items()
        if name.endswith(",none") and "_stderr" not in name
    }
    assert set(reported) - set(by_metric) == {key for key in reported if "ppl" in key[1]}
    for key, own in by_metric.items():
        assert float(np.mean(own)) == pytest.approx(reported[key], rel=1e-12, abs=1e-12), key
        assert len(own) == (3 if key[0] in ("posenc_passkey", "posenc_niah_single") else 5)
    kept = evaluate(llama, tokenizer, tasks=["posenc_ppl"], log_samples=True, **{**SMALL, "samples": 5})
    assert document_scores(kept.raw) == kept.documents
    (row,) = (row for row in found.rows if (row.task, row.metric) == ("posenc_ppl", "nll"))
    assert (row.n, row.clusters, row.higher_is_better) == (5, 2, False)  # two documents


def test_errors_of_independent_windows_are_lm_evals(llama, tokenizer) -> None:
    found = evaluate(llama, tokenizer, tasks=["posenc_ppl", "posenc_passkey"], **{**SMALL, "samples": 5})
    for row in found.rows:
        depth = "" if row.depth is None else f"_D{100 * row.depth:g}"
        reported = found.raw["results"][row.task].get(f"{row.metric}_L{row.length}{depth}_stderr,none")
        if row.metric != "ppl":
            assert row.stderr == pytest.approx(reported, rel=1e-9, abs=1e-12)
            assert row.clusters == row.n


@pytest.mark.slow
def test_differences_are_those_of_the_exported_documents(run, tmp_path: Path) -> None:
    run(against="unpatched")
    lines = [json.loads(line) for line in (tmp_path / "documents.jsonl").read_text(encoding="utf-8").splitlines()]
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    found = {(d["scheme"], d["task"], d["metric"], d["length"]): d for d in results["differences"]}
    assert len(found) == 2 * (2 + 2 * 2)  # two schemes: the loss of two lengths, accuracy and loss of passkeys at both
    for (scheme, task, metric, length), difference in found.items():
        own, base = (
            {
                line["document"]: line["value"]
                for line in lines
                if (line["scheme"], line["task"], line["metric"], line["length"], line["depth"])
                == (label, task, metric, length, None)
            }
            for label in (scheme, "unpatched")
        )
        d = np.array([own[name] - base[name] for name in base])
        assert difference["difference"] == pytest.approx(d.mean(), rel=1e-9, abs=1e-12)
        assert difference["stderr"] == pytest.approx(d.std(ddof=1) / len(d) ** 0.5, rel=1e-9, abs=1e-12)
        right_or_wrong = {*own.values(), *base.values()} <= {0.0, 1.0}  # tested by their two-by-two table
        if difference["low"] is not None and difference["stderr"] and not right_or_wrong:
            half = student_t(len(d) - 1) * d.std(ddof=1) / len(d) ** 0.5
            assert (difference["low"], difference["high"]) == pytest.approx(
                (d.mean() - half, d.mean() + half), rel=1e-9
            )
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["difference"]]
    assert {(r["scheme"], r["task"], r["metric"], int(r["length"])) for r in rows} == set(found)
    assert all(float(r["difference"]) == found[r["scheme"], r["task"], r["metric"], int(r["length"])]["difference"]
               for r in rows)  # fmt: skip


def test_windows_of_two_books_have_no_interval(llama, tokenizer) -> None:
    text = Dataset.from_dict({"text": [module_text("bisect") * 2, module_text("keyword") * 4]})
    found = evaluate(llama, tokenizer, tasks=["posenc_ppl"], text=text, **{**SMALL, "samples": 6})
    assert found.remarks == [
        "posenc_ppl: the 6 windows are of 2 documents, whose windows are not independent of each other, and too few "
        "for an interval. Give 3 documents or more, or a single one."
    ]
    assert all(interval(row) is None for row in found.rows)
    alone = evaluate(llama, tokenizer, tasks=["posenc_ppl"], **{**SMALL, "samples": 6})  # control: one document
    assert alone.remarks == []
    assert all(interval(row) is not None for row in alone.rows)


@pytest.mark.parametrize("task", ["posenc_ppl", "posenc_docs"])
def test_windows_of_the_only_long_document_are_independent(llama, tokenizer, task: str) -> None:
    text = Dataset.from_dict({"text": ["too short", module_text("bisect") * 2]})
    found = evaluate(llama, tokenizer, tasks=[task], text=text, **{**SMALL, "samples": 6})
    assert found.remarks == []
    assert all((row.n, row.clusters) == (6, 6) and interval(row) is not None for row in found.rows)
