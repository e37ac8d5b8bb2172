"""Files for papers: LaTeX that escapes every name and marks the best, vector figures, and experiment trackers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hf_posenc.errors import TrainingImpossible
from hf_posenc.eval.report.figures import figure_files
from hf_posenc.eval.report.latex import latex_text
from hf_posenc.eval.report.page import page_html
from hf_posenc.eval.report.phrases import model_title
from hf_posenc.eval.report.trackers import report_to_trackers
from hf_posenc.eval.results.record import Record

from .test_page import PAYLOADS, comparison

pytest.importorskip("matplotlib")


def test_the_best_of_every_column_is_bold() -> None:
    text = latex_text(comparison(("unpatched", "yarn", "dca")))
    for table in text.split("\\end{table}")[:-1]:
        lines = re.search(r"\\midrule\n(.*)\\bottomrule", table, re.DOTALL)[1].strip().splitlines()  # type: ignore[index]
        rows = [line.removesuffix("\\\\").split("&")[1:] for line in lines]
        higher = "accuracy" in table
        for column in zip(*rows, strict=True):
            values = [float(re.search(r"[\d.]+", value)[0]) for value in column]  # type: ignore[index]
            best = max(values) if higher else min(values)
            assert [value == best for value in values] == ["mathbf" in cell for cell in column]


@pytest.mark.parametrize("payload", [*PAYLOADS, "\\input{/etc/passwd}", "50%_of #1 ~ ^2"])
def test_names_are_no_latex_commands(payload: str) -> None:
    text = latex_text(comparison(("unpatched", payload), tasks=("posenc_ppl", payload)))
    plain = latex_text(comparison(("unpatched", "x"), tasks=("posenc_ppl", "x")))
    known = r"\\text(backslash|asciicircum|asciitilde|less|greater|bar|quotedbl)\{\}|\\[{}$&#%_]"
    bare, expected = re.sub(known, "", text), re.sub(known, "", plain)
    assert sorted(re.findall(r"\\[a-z]+", bare)) == sorted(re.findall(r"\\[a-z]+", expected))
    assert [bare.count(sign) for sign in "{}&$%"] == [expected.count(sign) for sign in "{}&$%"]


def test_figures_are_vectors_and_the_same_twice() -> None:
    made = comparison()
    files = figure_files(made)
    assert sorted(files) == [
        f"figure_{name}.{kind}" for name in ("posenc_passkey_acc", "posenc_ppl_nll") for kind in ("pdf", "svg")
    ]
    assert all(content.startswith(b"%PDF") == name.endswith("pdf") for name, content in files.items())
    assert b"#010203" not in b"".join(files.values())
    assert figure_files(comparison()) == files
    hostile = figure_files(comparison(tasks=("../../x", "posenc_ppl")))
    assert all(re.fullmatch(r"figure_\w+\.(pdf|svg)", name) for name in hostile)


def test_many_schemes_have_a_panel_each() -> None:
    few = page_html(comparison([f"scheme_{n}" for n in range(4)]))
    many = page_html(comparison(["unpatched", *(f"scheme_{n}" for n in range(5))]))
    assert "One panel per scheme" not in few
    assert many.count("One panel per scheme, all on the same axes") == 3
    labels = re.findall(r'aria-label="(posenc_ppl: [^"]*)"', many)
    assert labels == [
        "posenc_ppl: cross-entropy loss (nats/token) against length in tokens. At 512 tokens: unpatched 2.125, "
        "scheme_0 2.225, scheme_1 2.325, scheme_2 2.425, scheme_3 2.525, scheme_4 2.625"
    ]


def test_titles_are_names() -> None:
    given = (
        "/home/a b/models/small",
        "runs/x/checkpoint-500",
        "C:\\models\\small",
        "./small",
        "org/name",
        "starter:llama",
    )
    expected = ["small", "x/checkpoint-500", "small", "small", "org/name", "starter:llama"]
    assert list(map(model_title, given)) == expected


def test_numbers_reach_a_tracker(tmp_path: Path, monkeypatch) -> None:
    from transformers import TrainerCallback, integrations
    from transformers.integrations import integration_utils

    sent: list[tuple[int, dict[str, float]]] = []

    class Tracker(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs) -> None:
            sent.append((state.global_step, dict(logs)))

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "paper", Tracker)
    monkeypatch.setattr(integrations, "get_available_reporting_integrations", lambda: ["paper"])
    made = comparison()
    report_to_trackers(made, ["paper"], tmp_path)
    assert [step for step, _ in sent] == [256, 512]
    rows = {(r.length, f"{r.task}/{r.metric}/{r.scheme}"): r.value for r in made.rows if r.depth is None}
    assert {(step, name): value for step, logs in sent for name, value in logs.items()} == rows
    with pytest.raises(TrainingImpossible, match="There is no experiment tracker"):
        report_to_trackers(made, ["nothing"], tmp_path)


def test_means_that_look_the_same_are_bold_alike() -> None:
    """Cells that differ by float32 rounding alone show one number, and so have one face."""
    made = comparison(("yarn", "dca"))
    made = replace(made, records=[replace(record, rows=[nudged(record, row) for row in record.rows])
                                  for record in made.records])  # fmt: skip
    for table in latex_text(made).split("\\end{table}")[:-1]:
        cells = [line.partition("&")[2] for line in re.findall(r"^(?:yarn|dca) .*$", table, re.MULTILINE)]
        assert cells[0] == cells[1]
        assert "mathbf" in cells[0]


def nudged(record: Record, row: dict[str, Any]) -> dict[str, Any]:
    return row | {"value": 3.0 + (1e-7 if record.scheme == "dca" else 0.0), "stderr": 0.1}
