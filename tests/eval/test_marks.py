"""Marks in tables: where a reference is compared, what they say, and that foreign labels stay harmless."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hf_posenc.eval.report.exports import comparison_text
from hf_posenc.eval.report.page import page_html
from hf_posenc.eval.report.remarks import remarks, verdict
from hf_posenc.eval.report.tables import difference_table, value_table
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.paired import Difference
from hf_posenc.eval.results.rows import DocumentScore, Row
from hf_posenc.eval.results.store import Record

pytest.importorskip("matplotlib")

DIFFERENCE = Difference("pi", "yarn", "t", "nll", 256, 0.3764, 0.064, 0.2412, 0.5116, 16, 16, 1e-4, 2e-4, "worse")


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
    about = {
        "model": "m", "model_scheme": None, "trained_length": 256, "lengths": [256], "tasks": ["posenc_ppl"],
        "schemes": [{"label": label, "scheme": "x", "options": {}, "needs_training": False} for label in losses],
        "factor_per_length": False, "samples": 5, "scored": 64, "keys": 8, "depths": [0.5], "seed": 0, "limit": None,
        "text": None, "versions": {"python": "3.11"}, "digests": {}, "command": None, "against": against,
    }  # fmt: skip
    return Comparison(about, records)


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


def test_differences_have_a_table_of_their_own() -> None:
    comparison = compared(LOSSES)
    table = difference_table(comparison, "posenc_ppl", "nll")
    assert table is not None
    assert table.head == ["scheme", "256 (1×)"]
    assert [label for label, _ in table.lines] == ["lower", "higher", "either"]
    assert table.caption.startswith("cross-entropy loss minus that of yarn (nats/token)")
    text = comparison_text(comparison)
    for _, cell in table.lines:
        assert f"| {cell} |" in text
        assert cell in page_html(comparison)
    assert "\n+ " not in text  # which Markdown would take for a list


def test_a_task_without_comparison_says_so() -> None:
    comparison = compared(LOSSES)
    assert remarks(comparison) == []
    bare = Comparison(comparison.about, [replace(record, documents=[]) for record in comparison.records])
    assert remarks(bare) == [
        "posenc_ppl: nothing is compared with yarn, which has no number there that is a mean over documents."
    ]


def test_the_verdict_names_what_is_sure_at_the_longest_length() -> None:
    comparison = compared(LOSSES)
    sure = "Against yarn at 256 tokens: posenc_ppl (cross-entropy loss): lower surely better and higher surely worse."
    assert verdict(comparison) == sure
    assert comparison_text(comparison).split("\n\n")[1].replace("\\", "") == sure
    assert f"</h1>\n<p>{sure}</p>" in page_html(comparison)
    noise = compared({label: LOSSES[label] for label in ("yarn", "either")})
    assert verdict(noise) == "Against yarn at 256 tokens: posenc_ppl (cross-entropy loss): nothing is sure."
    assert verdict(compared(LOSSES, against=None)) == "", "no line is unpatched"
    comparison.about["schemes"][0]["scheme"] = None
    comparison.about["against"] = None
    assert verdict(Comparison(comparison.about, comparison.records)) == sure, "the unpatched line stands in"


def test_each_model_is_judged_by_its_own_baseline() -> None:
    """Two folders with the same weights are two models, too: the second has scores that are surely higher."""
    losses = {
        "a · unpatched": LOSSES["yarn"], "a · pi": LOSSES["lower"],
        "b · unpatched": LOSSES["higher"], "b · pi": [1.1 * loss + 1 for loss in LOSSES["higher"]],
    }  # fmt: skip
    comparison = compared(losses, against=None)
    for entry in comparison.about["schemes"]:
        name, _, scheme = entry["label"].partition(" · ")
        entry |= {"scheme": None if scheme == "unpatched" else scheme, "model": name, "model_digest": "same"}
    first, second = (f"Against {name} · unpatched at 256 tokens: posenc_ppl (cross-entropy loss): " for name in "ab")
    assert verdict(comparison) == f"{first}a · pi surely better. {second}b · pi surely worse."
    chosen = Comparison(comparison.about | {"against": "a · unpatched"}, comparison.records)
    assert "b · unpatched" in verdict(chosen), "control: whoever names a reference has all lines held against it"
