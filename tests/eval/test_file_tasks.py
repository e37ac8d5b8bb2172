"""Tasks on records of local files: what their prompts hold, and what their scores mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from hf_posenc.errors import UnreadableDocuments
from hf_posenc.eval import evaluate
from hf_posenc.eval.errors import LengthTooShort
from hf_posenc.eval.tasks.question_files import questions_of, word_overlap

SQUAD = {
    "data": [
        {"paragraphs": [
            {"context": f"Town {n} was founded by king number {n}.", "qas": [
                {"question": f"Who founded it, {n}?", "answers": [{"text": f"king number {n}"}, {"text": f"king {n}"}]},
                {"question": "Why?", "answers": [], "is_impossible": True},
            ]}
        ]} for n in range(6)
    ]
}  # fmt: skip
HOTPOT = [
    {
        "question": f"Where was the maker of clock {n} born?", "answer": f"village {n}",
        "supporting_facts": [[f"Clock {n}", 0], [f"Maker {n}", 0]],
        "context": [
            [f"Clock {n}", [f"Clock {n} was made by maker {n}."]], [f"Other {n}", ["Nothing here."]],
            [f"Maker {n}", [f"Maker {n} was born", f" in village {n}."]],
        ],
    } for n in range(4)
]  # fmt: skip
PLAIN = [
    {"context": f"Ship {n} sank in {1800 + n}.", "question": f"When did ship {n} sink?", "answers": [str(1800 + n)]}
    for n in range(6)
]


def written(folder: Path, name: str, content: Any) -> str:
    text = "\n".join(map(json.dumps, content)) if name.endswith("jsonl") else json.dumps(content)
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def run(llama, tokenizer, task: str, length: int = 400, **metadata: Any):
    return evaluate(
        llama, tokenizer, tasks=[task], lengths=[length // 2, length], keys=3, depths=[0.0, 1.0], log_samples=True,
        options=metadata,
    )  # fmt: skip


def check_room(samples: list[dict], tokenizer, lengths: tuple[int, ...]) -> None:
    """No request is longer than the longest length, and one is nearly as long."""
    sizes = [len(tokenizer(a + b)["input_ids"]) for sample in samples for a, b in sample["arguments"]]
    assert lengths[-1] - 120 < max(sizes) <= lengths[-1]


@pytest.mark.parametrize(("name", "content"), [("s.json", SQUAD), ("h.json", HOTPOT), ("p.jsonl", PLAIN)])
def test_questions_of_every_format(llama, tokenizer, tmp_path: Path, name: str, content: Any) -> None:
    out = run(llama, tokenizer, "posenc_qa_file", data=written(tmp_path, name, content))
    samples = out.raw["samples"]["posenc_qa_file"]
    assert {row.n for row in out.rows} == {3}
    check_room(samples, tokenizer, (200, 400))
    asked = list(questions_of([tmp_path]))
    for sample in samples:
        question = asked[sample["doc"]["question"]]
        first, last = sample["doc"]["prompts"][-2:]
        for prompt in (first, last):
            assert all(needed in prompt for needed in question.needed)
            assert prompt.endswith(f"Question: {question.question}\nAnswer:")
        assert sample["arguments"][0][1] == f" {question.answers[0]}"
        assert f"Document 1:\n{question.needed[0]}" in first
        assert f"Document 1:\n{question.needed[0]}" not in last  # the depth is that of the first needed document


@pytest.mark.slow
def test_an_accepted_answer_counts_in_a_generated_text(llama, tokenizer, tmp_path: Path) -> None:
    out = run(llama, tokenizer, "posenc_qa_file", data=written(tmp_path, "s.json", SQUAD), scoring="generate")
    assert {row.metric for row in out.rows} == {"match", "f1"}
    assert word_overlap("The king, number 3.", "king number 3") == 1.0
    assert word_overlap("king number 4", "king number 3") == pytest.approx(2 / 3)
    assert word_overlap("nobody", "king number 3") == 0.0


@pytest.mark.parametrize(
    ("content", "error", "told"),
    [
        ([{"question": "q", "answers": ["a"]}], UnreadableDocuments, "line 1.*needed"),
        ([{"context": "c", "question": "q", "answers": []}], UnreadableDocuments, "line 1.*answers"),
        (PLAIN[:1], UnreadableDocuments, "one question"),
        ([["not a record"]], UnreadableDocuments, "line 1"),
        ([record | {"context": "word " * 900} for record in PLAIN], LengthTooShort, "200"),
    ],
)
def test_records_that_cannot_be_asked(llama, tokenizer, tmp_path: Path, content: Any, error: type, told: str) -> None:
    with pytest.raises(error, match=told):
        run(llama, tokenizer, "posenc_qa_file", data=written(tmp_path, "p.jsonl", content))


def test_records_of_every_kind_of_file(tmp_path: Path) -> None:
    Dataset.from_list(PLAIN).to_parquet(str(tmp_path / "c.parquet"))
    written(tmp_path, "a.json", PLAIN)
    written(tmp_path, "b.jsonl", PLAIN)
    asked = [(one.question, *one.needed, *one.answers) for one in questions_of([tmp_path])]
    assert asked == [(one["question"], one["context"], *one["answers"]) for one in PLAIN] * 3
    with pytest.raises(UnreadableDocuments):
        list(questions_of([tmp_path / "x.txt"]))
    columns = {"context": "c", "question": "q", "answers": {"text": ["a"], "answer_start": [1]}}
    assert [one.answers for one in questions_of([written(tmp_path, "d.jsonl", [columns])])] == [("a",)]
