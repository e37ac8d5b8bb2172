"""Documents of the user: what is used, what is left out, and that the report says so."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from datasets import Dataset

from hf_posenc.eval import evaluate
from hf_posenc.eval.errors import TextTooShort, UnreadableDocuments
from hf_posenc.eval.texts.documents import documents
from hf_posenc.eval.texts.stdlib_source import module_text
from hf_posenc.texts import Document

from .conftest import TRAINED

LENGTHS = [64, TRAINED]
SMALL = {"tasks": ["posenc_docs"], "lengths": LENGTHS, "scored": 16, "log_samples": True}
SOURCE = module_text("bisect")


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "records.jsonl"
    texts = [SOURCE, "", SOURCE[500:], "too short", None, SOURCE[900:]]
    path.write_text("\n".join(json.dumps({"body": text}) for text in texts) + "\n\n", encoding="utf-8")
    return path


def test_numbers_are_those_of_the_documents(llama, tokenizer, records, caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="hf_posenc"):
        options = {"docs": str(records), "field": "body", "from_start": True}
        evaluation = evaluate(llama, tokenizer, options=options, **SMALL)
    counts = evaluation.raw["configs"]["posenc_docs"]["metadata"]["documents"]
    assert counts == {"read": 6, "used": 3, "short": 1, "empty": 2, "windows": 3}
    assert "2 are empty and 1 too short" in caplog.text
    rows = {(r.metric, r.length): r for r in evaluation.rows}
    samples = evaluation.raw["samples"]["posenc_docs"]
    assert [sample["doc"]["name"] for sample in samples] == [f"records.jsonl:{line}" for line in (1, 3, 6)]
    for length in LENGTHS:
        found = []
        for text in (SOURCE, SOURCE[500:], SOURCE[900:]):
            ids = torch.tensor([tokenizer(text)["input_ids"][LENGTHS[-1] - length : LENGTHS[-1]]])
            logits = llama(ids).logits[0, -17:-1].double()
            found.append(torch.nn.functional.cross_entropy(logits, ids[0, -16:]).item())
        assert rows["nll", length].value == pytest.approx(sum(found) / 3, rel=1e-5)
        assert rows["nll", length].n == 3


def test_each_document_has_as_many_windows(llama, tokenizer, records) -> None:
    """At random places of all its parts, scored like any other tokens; the books differ in length."""
    options = {"docs": str(records), "field": "body"}
    evaluation = evaluate(llama, tokenizer, options=options, samples=8, **SMALL)
    samples = evaluation.raw["samples"]["posenc_docs"]
    clusters = [sample["doc"]["cluster"] for sample in samples]
    assert {name: clusters.count(name) for name in clusters} == {
        "records.jsonl:1": 3, "records.jsonl:3": 3, "records.jsonl:6": 2
    }  # fmt: skip
    for sample in samples:
        name, start = sample["doc"]["name"].split(", token ")
        text = {"1": SOURCE, "3": SOURCE[500:], "6": SOURCE[900:]}[name[-1]]
        ids = tokenizer(text)["input_ids"][int(start) : int(start) + LENGTHS[-1]]
        assert sample["doc"]["ids"] == ids
        for length in LENGTHS:
            logits = llama(torch.tensor([ids[-length:]])).logits[0, -17:-1].double()
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[-16:])).item()
            assert sample[f"nll_L{length}"] == pytest.approx(loss, rel=1e-5)
    other = evaluate(llama, tokenizer, options=options, samples=8, seed=1, **SMALL).raw["samples"]["posenc_docs"]
    assert [s["doc"]["name"] for s in other] != [s["doc"]["name"] for s in samples]


def test_files_folders_and_several_sources(records, tmp_path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("first", encoding="utf-8")
    (tmp_path / "sub" / "picture.png").write_bytes(b"\x89PNG")
    assert list(documents([str(tmp_path / "sub")], "text")) == [Document("a.txt", "first")]
    assert len(list(documents([str(records), str(tmp_path / "sub" / "a.txt")], "body"))) == 7


def test_datasets_by_name(monkeypatch) -> None:
    made = {name: Dataset.from_list([{"text": text}]) for name, text in (("train", "no"), ("test", "yes"))}
    monkeypatch.setattr("datasets.load_dataset", lambda name: made)
    assert list(documents(["owner/name"], "text")) == [Document("owner/name:0", "yes")]


def broken(path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n{oops', "line 2.* is not valid JSON"),
        ("a.jsonl", '{"body": "x"}', "only body"),
        ("a.jsonl", "[1]", "of type list"),
        ("a.txt", b"\xff\xfe\x00", "UTF-8"),
    ],
)
def test_what_cannot_be_read_raises(name: str, content: str | bytes, message: str, tmp_path) -> None:
    with pytest.raises(UnreadableDocuments, match=message):
        list(documents([broken(tmp_path / name, content)], "text"))


def test_missing_sources_raise(tmp_path, monkeypatch) -> None:
    def offline(name: str) -> None:
        raise ConnectionError("offline")

    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(UnreadableDocuments, match="no file and no folder"):
        list(documents([str(tmp_path / "nowhere.txt")], "text"))
    with pytest.raises(UnreadableDocuments, match="no such files"):
        list(documents([str(tmp_path)], "text"))
    with pytest.raises(UnreadableDocuments, match="no documents"):
        list(documents([], "text"))


def test_documents_that_are_all_too_short_raise(llama, tokenizer, tmp_path) -> None:
    (tmp_path / "a.txt").write_text("short", encoding="utf-8")
    (tmp_path / "b.txt").write_text("", encoding="utf-8")
    with pytest.raises(TextTooShort, match=r"None of 2 documents has the 128 tokens.*1 are empty"):
        evaluate(llama, tokenizer, options={"docs": str(tmp_path)}, **SMALL)
