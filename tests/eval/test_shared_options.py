"""Options of tasks in a comparison: what they change, when cells are measured again, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_posenc.errors import BadComparison, UnknownOption, UnreadableDocuments
from hf_posenc.eval import compare
from hf_posenc.eval.comparison import measure

from .conftest import TRAINED

pytest.importorskip("matplotlib")
LENGTHS = [2 * TRAINED, 3 * TRAINED]
TASKS = ["posenc_ppl", "posenc_qa_file"]


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


@pytest.fixture
def run(llama, tokenizer, tmp_path: Path) -> Callable:
    def compared(**given: Any) -> Any:
        small = {"lengths": LENGTHS, "samples": 2, "scored": 16, "keys": 2, "depths": [0.0, 1.0], "tasks": TASKS}
        return compare(llama, "unpatched,pi", tokenizer=tokenizer, out=tmp_path / "out", **(small | given))

    return compared


@pytest.fixture
def measured(monkeypatch) -> list[str]:
    """Names of the cells that are measured."""
    names, original = [], measure.measure_cell
    monkeypatch.setattr(measure, "measure_cell", lambda *given: (names.append(given[1].name), original(*given))[1])
    return names


@pytest.mark.slow
def test_cells_are_measured_again_where_the_content_of_the_file_changed(run, tmp_path: Path, measured) -> None:
    file = questions(tmp_path / "data")
    run(options={"data": str(file)})
    count = len(measured)
    assert count > 4
    run(options={"data": [str(file)]})
    run(options={"data": str(questions(tmp_path / "elsewhere"))})  # the same content
    assert len(measured) == count
    questions(tmp_path / "data", first=1900)
    run(options={"data": str(file)})
    assert len(measured) == 2 * count
    run(options={"data": str(file), "question_tokens": 200})
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
        run(options={"data": str(questions(tmp_path / "data"))} | options)
    assert not measured
