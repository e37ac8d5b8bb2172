"""Marks, verdicts and remarks of a comparison: what is held against what, and numbers that must be equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hf_posenc.eval import compare
from hf_posenc.eval.report.exports import comparison_text
from hf_posenc.eval.report.page import page_html
from hf_posenc.eval.report.remarks import remarks, verdict
from hf_posenc.eval.report.tables import value_table
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.rows import DocumentScore, Row
from hf_posenc.eval.results.store import Record

from .conftest import TRAINED
from .made_up import made_up

pytest.importorskip("matplotlib")


def compared(losses: dict[str, list[float]], against: str | None = "yarn", metric: str = "nll") -> Comparison:
    records = []
    for label, values in losses.items():
        value = sum(values) / len(values)
        row = Row("m", label, "posenc_ppl", 256, None, metric, value, 0.1, len(values), len(values), metric == "acc")
        scores = [
            DocumentScore("posenc_ppl", f"d{number}", f"d{number}", 256, None, metric, one)
            for number, one in enumerate(values)
        ]
        records.append(Record(label, label, "posenc_ppl", 256, "done", "", [row], 1.0, {}, scores))
    return made_up(records, against=against)


LOSSES = {
    "yarn": [3.0, 2.0, 4.0, 1.0, 5.0], "lower": [2.5, 1.4, 3.5, 0.6, 4.5], "higher": [3.5, 2.6, 4.5, 1.4, 5.5],
    "either": [3.4, 1.6, 4.3, 0.7, 5.1],
}  # fmt: skip


def test_each_number_has_its_mark_and_the_reference_none() -> None:
    lines = value_table(compared(LOSSES), "posenc_ppl", "nll").lines
    assert {label: cell.split()[-1] for label, cell in lines} == {
        "yarn": "0.100", "lower": "+", "higher": "−", "either": "?"
    }  # fmt: skip
    plain = value_table(compared(LOSSES, against=None), "posenc_ppl", "nll").lines
    assert all(cell.endswith("0.100") for _, cell in plain)


def test_the_verdict_names_what_is_sure_at_the_longest_length() -> None:
    comparison = compared(LOSSES)
    head = "Against yarn at 256 tokens: posenc_ppl (cross-entropy loss):"
    sure = f"{head} lower significantly better and higher significantly worse."
    assert verdict(comparison) == sure
    assert comparison_text(comparison).split("\n\n")[1].replace("\\", "") == sure
    assert f"</h1>\n<p>{sure}</p>" in page_html(comparison)
    noise = compared({label: LOSSES[label] for label in ("yarn", "either")})
    assert verdict(noise) == f"{head} no difference is significant."
    assert verdict(compared(LOSSES, against=None)) == "", "no line is unpatched"
    comparison.about["schemes"][0]["scheme"] = None
    comparison.about["against"] = None
    assert verdict(Comparison(comparison.about, comparison.records)) == sure, "the unpatched line stands in"


def test_each_model_is_judged_by_its_own_baseline() -> None:
    """Two folders with the same weights are two models, too: the second has scores that are significantly higher."""
    losses = {
        "a · unpatched": LOSSES["yarn"], "a · pi": LOSSES["lower"],
        "b · unpatched": LOSSES["higher"], "b · pi": [1.1 * loss + 1 for loss in LOSSES["higher"]],
    }  # fmt: skip
    comparison = compared(losses, against=None)
    for entry in comparison.about["schemes"]:
        name, _, scheme = entry["label"].partition(" · ")
        entry |= {"scheme": None if scheme == "unpatched" else scheme, "model": name, "model_digest": "same"}
    first, second = (f"Against {name} · unpatched at 256 tokens: posenc_ppl (cross-entropy loss): " for name in "ab")
    assert verdict(comparison) == f"{first}a · pi significantly better. {second}b · pi significantly worse."
    chosen = Comparison(comparison.about | {"against": "a · unpatched"}, comparison.records)
    assert "b · unpatched" in verdict(chosen), "control: whoever names a reference has all lines held against it"


SMALL: dict[str, Any] = {"samples": 2, "scored": 16, "tasks": ["posenc_ppl"]}


@pytest.fixture
def run(llama, tokenizer, tmp_path) -> Callable:
    def compared(schemes: str, lengths: list[int], **given: Any) -> Comparison:
        return compare(llama, schemes, tokenizer=tokenizer, out=tmp_path, lengths=lengths, **SMALL, **given)

    return compared


def test_schemes_with_a_factor_of_1_are_named(run, tmp_path) -> None:
    found = run("unpatched,yarn,yarn+logn,yarn:factor=2,dca", [TRAINED // 2, TRAINED])
    losses = {row.scheme: row.value for row in found.rows if (row.metric, row.length) == ("nll", TRAINED)}
    assert losses["yarn"] == losses["yarn+logn"] == pytest.approx(losses["unpatched"], rel=1e-5)
    assert losses["dca"] != pytest.approx(losses["unpatched"], rel=1e-5)
    expected = f"yarn, yarn+logn: no effect at {TRAINED // 2}, {TRAINED} tokens; numbers are those of the model without"
    assert [one for one in remarks(found) if one.startswith("yarn")] == [f"{expected} a scheme."]
    assert sum("their factor is 1" in one for one in remarks(found)) == 1
    for name in ("results.md", "page.html"):
        assert expected in (tmp_path / name).read_text(encoding="utf-8")
    schemes = {scheme["label"]: scheme["without_effect"] for scheme in found.to_dict()["about"]["schemes"]}
    assert schemes["yarn"] == [TRAINED // 2, TRAINED]
    assert schemes["unpatched"] == schemes["yarn:factor=2"] == []


def test_no_effect_is_said_of_measured_lengths_alone() -> None:
    cells = [("yarn", 64, "failed"), ("yarn", 128, "done"), ("pi", 64, "refused"), ("pi", None, "done")]
    found = made_up(
        [Record(f"{name}{n}", name, "posenc_ppl", n, state, "", [], 0.0, {}) for name, n, state in cells],
        lengths=[64, 128], longest=512,
    )  # fmt: skip
    for scheme in found.about["schemes"]:
        scheme["without_effect"] = [64, 128]
    said = [one.partition(" tokens")[0] for one in remarks(found) if "no effect" in one]
    assert said == ["yarn, pi: no effect at 128"]


def test_a_rotation_needs_training_on_a_model_that_never_rotated(gpt2, llama, tokenizer, tmp_path) -> None:
    weights = "training, and these weights were not trained with"
    for model, expected in ((gpt2, f"yarn+logn, alibi need {weights} them."), (llama, f"alibi needs {weights} it.")):
        out = tmp_path / type(model).__name__
        found = compare(model, "yarn+logn,logn,alibi", out=out, tokenizer=tokenizer, lengths=[TRAINED], **SMALL)
        assert [one for one in remarks(found) if weights in one] == [expected]


def test_a_reason_is_said_once_for_all_that_share_it() -> None:
    def said(**reasons: dict[tuple[str, int], str]) -> list[str]:
        cells = [(label, *cell, reason) for label, of in reasons.items() for cell, reason in of.items()]
        return remarks(made_up([
            Record(f"{label}{task}{length}", label, task, length, "failed" if reason else "done", reason, [], 0.0, {})
            for label, task, length, reason in cells
        ]))  # fmt: skip

    short = {("posenc_ppl", 1024): "Too short.", ("posenc_ppl", 256): "Too short.", ("posenc_passkey", 64): ""}
    assert said(unpatched=short, yarn=short) == ["Failed at posenc_ppl 256, 1024. Too short."]
    whole, other = dict.fromkeys(short, ""), short | {("posenc_passkey", 64): "Too short."}
    assert said(unpatched=whole, yarn=short, pi=other) == [
        "yarn: failed at posenc_ppl 256, 1024. Too short.", "pi: failed. Too short.",
    ]  # fmt: skip
