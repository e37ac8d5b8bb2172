"""A comparison: its numbers are those of `evaluate`, nothing finished is measured twice, and a failure affects one
cell.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hf_posenc import patch_model, unpatch_model
from hf_posenc.errors import BadComparison, SchemeNotDefined, UnknownOption, UnknownScheme
from hf_posenc.eval import compare, evaluate
from hf_posenc.eval.comparison import measure
from hf_posenc.eval.comparison.cell import Measuring
from hf_posenc.eval.comparison.one_model import default_lengths
from hf_posenc.eval.errors import StoreUnusable, TaskOptionOutOfRange, UnreadableDocuments
from hf_posenc.eval.settings import CompareSettings
from hf_posenc.schemes.entry import Entry, entries_of

from .conftest import TRAINED

pytest.importorskip("matplotlib")

SMALL: dict[str, Any] = {"samples": 2, "scored": 16, "keys": 1, "depths": (0.0, 1.0)}
LENGTHS = [TRAINED, 2 * TRAINED]
FILES = [
    "cells.sqlite", "documents.jsonl", "page.html", "results.csv", "results.json", "results.md",
]  # fmt: skip


def files_of(folder: Path) -> list[str]:
    """Names of what a comparison has written."""
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, tuple[int, ...]]]:
    """Scheme, task and lengths of every cell that is really measured."""
    seen, evaluation_of = [], measure.evaluation_of

    def spied(lm: Any, settings: Any, label: str) -> Any:
        seen.append((label, settings.tasks[0], settings.lengths))
        return evaluation_of(lm, settings, label)

    monkeypatch.setattr(measure, "evaluation_of", spied)
    return seen


@pytest.fixture
def run(llama, tokenizer, tmp_path) -> Callable:
    def compared(schemes: Any = "unpatched,pi", **given: Any) -> Any:
        few = {"lengths": LENGTHS, "out": tmp_path, **SMALL}
        return compare(llama, schemes, tokenizer=tokenizer, **{**few, **given})

    return compared


@pytest.mark.slow
def test_numbers_are_those_of_evaluate(run, llama, tokenizer) -> None:
    rows = run("unpatched,pi").rows
    for scheme in ("unpatched", "pi"):
        for length in LENGTHS:
            if scheme == "pi":
                patch_model(llama, "pi", target_length=LENGTHS[-1])
            expected = evaluate(llama, tokenizer, lengths=[length], longest=LENGTHS[-1], **SMALL).rows
            if scheme == "pi":
                unpatch_model(llama)
            found = [r for r in rows if (r.scheme, r.length) == (scheme, length)]
            assert {(r.task, r.metric, r.depth): r.value for r in found} == {
                (r.task, r.metric, r.depth): r.value for r in expected
            }
    losses = {(r.scheme, r.length): r.value for r in rows if (r.task, r.metric) == ("posenc_ppl", "nll")}
    assert losses["pi", 2 * TRAINED] != losses["unpatched", 2 * TRAINED]


def test_one_factor_for_all_lengths(run) -> None:
    def losses(words: str, **given: Any) -> dict[int, float]:
        rows = run(words, tasks=["posenc_ppl"], **given).rows
        return {r.length: r.value for r in rows if r.metric == "nll"}

    fixed = losses("pi")
    assert fixed == losses("pi:factor=2")
    other = losses("pi:factor=1.5")  # in the same folder: neither reads the other's cells
    assert other[TRAINED] != pytest.approx(fixed[TRAINED], rel=1e-6)


@pytest.mark.slow
def test_a_repeated_comparison_measures_nothing(run, measured, tmp_path) -> None:
    run()
    first = {name: (tmp_path / name).read_bytes() for name in FILES[1:]}
    assert files_of(tmp_path) == FILES
    assert len(measured) == len(set(measured)) == 2 * 2 * 2
    run()
    assert len(measured) == 8
    assert {name: (tmp_path / name).read_bytes() for name in FILES[1:]} == first
    run("unpatched,pi,ntk")  # one more scheme, and only it
    assert {scheme for scheme, _, _ in measured[8:]} == {"ntk"}
    run("unpatched,linear")  # the same scheme by another name
    assert len(measured) == 12


def test_fresh_measures_again(run, measured) -> None:
    first = run("pi", tasks=["posenc_ppl"])
    assert run("pi", tasks=["posenc_ppl"], fresh=True).rows == first.rows
    assert len(measured) == 4
    run("pi", tasks=["posenc_ppl"])  # control: fresh is no setting of a cell
    assert len(measured) == 4


@pytest.mark.parametrize("changed", [{"seed": 1}, {"batch_size": 2}, {"text": True}, {"weights": True}], ids=str)
def test_a_changed_setting_reuses_nothing(run, measured, changed, llama, tmp_path_factory) -> None:
    """Settings one by one: tests/eval/test_cells.py."""
    run("pi", tasks=["posenc_ppl"])
    before = len(measured)
    if changed.pop("weights", False):
        with torch.no_grad():
            llama.model.layers[1].mlp.up_proj.weight[0, 0] += 1e-3
    if "text" in changed:
        text = tmp_path_factory.mktemp("text") / "own.txt"
        text.write_text("Nothing is written here that anybody would read twice.\n" * 200)
        changed["text"] = text
    run("pi", tasks=["posenc_ppl"], **changed)
    assert len(measured) == before + 2


def test_what_is_not_defined_is_refused_and_the_rest_goes_on(run, measured, llama, tmp_path) -> None:
    comparison = run("learned_hier,pi,pi:factor=0.5", tasks=["posenc_ppl"])
    assert [(r.scheme, r.state) for r in comparison.records] == [
        *[("learned_hier", "refused")] * 2, *[("pi", "done")] * 2, *[("pi:factor=0.5", "refused")] * 2
    ]  # fmt: skip
    assert "not defined for this llama model" in comparison.records[0].reason
    with pytest.raises(SchemeNotDefined):  # control
        patch_model(llama, "learned_hier", factor=2)
    for name in ("results.md", "page.html", "results.csv"):
        assert "not defined for this llama model" in (tmp_path / name).read_text(encoding="utf-8")
    assert len(measured) == 2


def test_a_masked_model(bert, framed_tokenizer, tmp_path) -> None:
    found = compare(bert, ["unpatched"], out=tmp_path, tokenizer=framed_tokenizer, lengths=[TRAINED], **SMALL)
    assert {row.task for row in found.rows} == {"posenc_mlm", "posenc_passkey"}


def test_a_failed_cell_is_noted_and_tried_again(run, measured, monkeypatch) -> None:
    spied = measure.evaluation_of

    def broken(lm: Any, settings: Any, label: str) -> Any:
        if (label, settings.lengths) == ("pi", (TRAINED,)):
            raise RuntimeError("out of memory\nwith a long story")
        return spied(lm, settings, label)

    monkeypatch.setattr(measure, "evaluation_of", broken)
    found = run(tasks=["posenc_ppl"])
    assert [r.state for r in found.records] == ["done", "done", "failed", "done"]
    assert found.records[2].reason == "RuntimeError: out of memory"
    monkeypatch.setattr(measure, "evaluation_of", spied)
    assert [r.state for r in run(tasks=["posenc_ppl"]).records] == ["done"] * 4
    assert len(measured) == 4


def test_non_finite_numbers_are_not_reported(run, llama) -> None:
    """Weights that are numbers, and logits that are not: no cell has a number."""
    with torch.no_grad():
        llama.lm_head.weight[0] = 3e38
    found = run("unpatched", tasks=["posenc_ppl"])
    assert not found.rows
    assert found.with_state("failed")
    assert all("came out as" in record.reason for record in found.with_state("failed"))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"schemes": "yarm"}, UnknownScheme, "yarn"),
        ({"schemes": "yarn:beta_fst=3"}, UnknownOption, "beta_fast"),
        ({"schemes": ""}, BadComparison, "no scheme"),
        ({"schemes": "factor=2"}, BadComparison, "before any scheme"),
        ({"schemes": "unpatched:factor=2"}, BadComparison, "takes no"),
        ({"against": "yarn"}, BadComparison, "the schemes are unpatched, pi"),
        ({"schemes": "pi", "against": "pi"}, BadComparison, "Only pi is measured"),
        ({"lengths": [0]}, TaskOptionOutOfRange, "lengths"),
        ({"lengths": [1.5]}, TaskOptionOutOfRange, "lengths"),
        ({"tasks": ["posenc_pll"]}, BadComparison, "posenc_ppl"),
        ({"text": Path("absent.txt")}, UnreadableDocuments, "absent.txt"),
    ],
    ids=str,
)
def test_invalid_arguments_are_refused_before_writing(run, tmp_path, given, error, message) -> None:
    with pytest.raises(error, match=message):
        run(**given)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_at_the_end_keeps_the_cells(run, measured, monkeypatch, tmp_path) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("hf_posenc.eval.report.exports.write_bytes", full)
        with pytest.raises(StoreUnusable, match="No space left on device"):
            run(tasks=["posenc_ppl"])
    assert [p.name for p in tmp_path.iterdir()] == ["cells.sqlite"]
    run(tasks=["posenc_ppl"])
    assert len(measured) == 4
    assert files_of(tmp_path) == FILES


def test_scheme_entries_as_text() -> None:
    entries = entries_of(["yarn, self_extend:group=8,window=128", "unpatched,longrope:short=[1,1],magnitude=2;pi"][:1])
    assert entries == [
        Entry("yarn", "yarn"),
        Entry("self_extend:group=8,window=128", "self_extend", {"group": 8, "window": 128}),
    ]
    assert entries_of("yarn,yarn") == [Entry("yarn", "yarn")]
    assert entries_of("yarn+logn:factor=2,unpatched")[0].lengths == {"factor": 2}
    assert entries_of("pi:target_length=8k,trained_length=512")[0].lengths == {
        "target_length": 8192,
        "trained_length": 512,
    }
    assert entries_of([("yarn", {"beta_fast": 16})])[0].label == "yarn:beta_fast=16"
    with pytest.raises(BadComparison, match="different labels"):
        entries_of([Entry("a", "yarn"), Entry("a", "pi")])


@pytest.mark.parametrize(
    ("schemes", "multiples"),
    [("unpatched,host+ntk", (1, 4, 8)), ("unpatched,yarn", (1, 2, 4)), ("unpatched", (1, 2, 4)),
     ("yarn,host+ntk", (1, 4, 8)), ("host+ntk:trained_length=128", (1, 2, 4))],
)  # fmt: skip
def test_default_lengths_lie_within_and_beyond_what_the_schemes_count_from(
    llama, schemes: str, multiples: tuple[int, ...]
) -> None:
    """Of a checkpoint that states its own scaling, as an exported one does."""
    llama.config.max_position_embeddings = 4 * TRAINED
    llama.config.rope_parameters |= {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED
    }  # fmt: skip
    scaled, entries = type(llama)(llama.config), entries_of(schemes)
    lm: Any = SimpleNamespace(model=scaled, report={})
    lengths = default_lengths(lm, entries, TRAINED)
    assert lengths == [TRAINED * multiple for multiple in multiples]
    if "host+ntk" in schemes:
        effects = []
        for n in lengths:  # patched for that length, and measured there
            fitting = Measuring(lm, CompareSettings(lengths=(n,)), {}, {}, None, {})  # type: ignore[arg-type]
            effects.append(fitting.has_effect(fitting.fit(entries[-1]), n))
        assert effects == [n > lengths[-2] or (multiples[-1] == 4 and n > TRAINED) for n in lengths]


def questions(folder: Path, first: int = 1800) -> Path:
    """A file of six questions, each about a year from ``first`` on."""
    records = [
        {
            "context": f"Ship {n} sank in {first + n}.",
            "question": f"When did ship {n} sink?",
            "answers": [f"{first + n}"],
        }
        for n in range(6)
    ]
    folder.mkdir(exist_ok=True)
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return folder / "questions.jsonl"


def asked(run: Callable, folder: Path, **given: Any) -> None:
    run(lengths=[2 * TRAINED, 3 * TRAINED], keys=2, tasks=["posenc_ppl", "posenc_qa_file"], out=folder / "out", **given)


@pytest.mark.slow
def test_cells_are_measured_again_where_the_content_of_the_file_changed(run, tmp_path: Path, measured) -> None:
    file = questions(tmp_path / "data")
    asked(run, tmp_path, options={"data": str(file)})
    count = len(measured)
    assert count > 4
    asked(run, tmp_path, options={"data": [str(file)]})
    asked(run, tmp_path, options={"data": str(questions(tmp_path / "elsewhere"))})  # the same content
    assert len(measured) == count
    questions(tmp_path / "data", first=1900)
    asked(run, tmp_path, options={"data": str(file)})
    assert len(measured) == 2 * count
    asked(run, tmp_path, options={"data": str(file), "question_tokens": 200})
    assert len(measured) == 3 * count


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"question_token": 200}, UnknownOption, "'question_token'.*Did you mean 'question_tokens'"),
        ({"data": "missing.jsonl"}, UnreadableDocuments, "missing.jsonl"),
        ({"text": "novel.txt"}, BadComparison, "text"),
    ],
)
def test_what_no_task_reads_is_refused_before_measuring(
    run, tmp_path: Path, measured, options: dict[str, Any], error: type, told: str
) -> None:
    with pytest.raises(error, match=told):
        asked(run, tmp_path, options={"data": str(questions(tmp_path / "data"))} | options)
    assert not measured
