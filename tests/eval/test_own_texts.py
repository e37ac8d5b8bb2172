"""Documents of the user: what is used, what is left out, and that windows cross none of them."""

from __future__ import annotations

import bisect
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_posenc.errors import BadComparison, UnknownOption, WrongKind
from hf_posenc.eval import compare, evaluate
from hf_posenc.eval.catalogue import check_settings_read
from hf_posenc.eval.errors import TextTooShort, UnreadableDocuments
from hf_posenc.eval.texts.measured_text import module_text
from hf_posenc.insight.probe.run import shares
from hf_posenc.texts import TextSource

from .conftest import TRAINED, nats

LENGTHS = [64, TRAINED]
SMALL = {"tasks": ["posenc_docs"], "lengths": LENGTHS, "scored": 16, "log_samples": True}
SOURCE, SOURCE_FILE = module_text("bisect"), bisect.__file__


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "records.jsonl"
    texts = [SOURCE, "", SOURCE[500:], "too short", None, SOURCE[900:]]
    path.write_text("\n".join(json.dumps({"body": text}) for text in texts) + "\n\n", encoding="utf-8")
    return path


def test_numbers_are_those_of_the_documents(llama, tokenizer, records) -> None:
    evaluation = evaluate(llama, tokenizer, text=str(records), text_field="body", options={"from_start": True}, **SMALL)
    counts = evaluation.raw["configs"]["posenc_docs"]["metadata"]["documents"]
    assert counts == {"read": 6, "used": 3, "short": 1, "empty": 2, "windows": 3}
    rows = {(r.metric, r.length): r for r in evaluation.rows}
    samples = evaluation.raw["samples"]["posenc_docs"]
    assert [sample["doc"]["name"] for sample in samples] == [f"records.jsonl:{line}" for line in (1, 3, 6)]
    for length in LENGTHS:
        found = []
        for text in (SOURCE, SOURCE[500:], SOURCE[900:]):
            ids = tokenizer(text)["input_ids"][LENGTHS[-1] - length : LENGTHS[-1]]
            found.append(nats(llama, ids, 16).mean().item())
        assert rows["nll", length].value == pytest.approx(sum(found) / 3, rel=1e-5)
        assert rows["nll", length].n == 3


def test_each_document_has_as_many_windows(llama, tokenizer, records) -> None:
    """At random places of all its parts, scored like any other tokens; the books differ in length."""
    given = SMALL | {"text": str(records), "text_field": "body", "samples": 8}
    evaluation = evaluate(llama, tokenizer, **given)
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
            loss = nats(llama, ids[-length:], 16).mean().item()
            assert sample[f"nll_L{length}"] == pytest.approx(loss, rel=1e-5)
    other = evaluate(llama, tokenizer, seed=1, **given).raw["samples"]["posenc_docs"]
    assert [s["doc"]["name"] for s in other] != [s["doc"]["name"] for s in samples]


def test_documents_that_are_all_too_short_raise(llama, tokenizer, tmp_path) -> None:
    (tmp_path / "a.txt").write_text("short", encoding="utf-8")
    (tmp_path / "b.txt").write_text("", encoding="utf-8")
    with pytest.raises(TextTooShort, match="128"):
        evaluate(llama, tokenizer, text=str(tmp_path), **SMALL)


def test_missing_sources_raise(llama, tokenizer, tmp_path) -> None:
    for text in (None, str(tmp_path / "nowhere.txt"), str(tmp_path)):
        with pytest.raises(UnreadableDocuments):
            evaluate(llama, tokenizer, text=text, **SMALL)
    with pytest.raises(UnknownOption):
        evaluate(llama, tokenizer, text=SOURCE_FILE, options={"docs": str(tmp_path)}, **SMALL)


BOOKS = [module_text("bisect"), "short", module_text("keyword") * 3, ""]


@given(st.lists(st.integers(0, 500), min_size=1, max_size=30), st.data())
def test_shares_are_in_proportion(rooms: list[int], data: st.DataObject) -> None:
    if sum(rooms) == 0:
        return
    count = data.draw(st.integers(1, sum(rooms)))
    found = shares(rooms, count)
    assert sum(found) == count
    for room, share in zip(rooms, found, strict=True):
        assert share <= room
        assert abs(share - count * room / sum(rooms)) < 1


@pytest.mark.parametrize("task", ["posenc_ppl", "posenc_token_nll", "posenc_docs"])
def test_tasks_read_records(task: str, llama, tokenizer, tmp_path: Path) -> None:
    """As a source, and by name."""
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in BOOKS))
    measure = {"tasks": [task], "lengths": LENGTHS, "samples": 2, "scored": 16}
    text = TextSource.of_names(tmp_path / "a.jsonl", field="body")
    found = [
        evaluate(llama, tokenizer, text=text, **measure).rows,
        evaluate(llama, tokenizer, text=[str(tmp_path / "a.jsonl")], text_field="body", **measure).rows,
    ]
    assert found[0] == found[1]
    assert found[0][0].n == 2


def test_a_text_that_no_task_reads_is_refused(llama, tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(BOOKS[0])
    with pytest.raises(BadComparison):
        evaluate(llama, tokenizer, tasks=["posenc_cwe", "posenc_fwe"], lengths=[64], text=tmp_path / "a.txt")
    check_settings_read(["text"], [])
    check_settings_read(["text"], ["posenc_passkey", "posenc_ppl"])
    check_settings_read(["text"], ["posenc_cwe", "posenc_ppl"])
    check_settings_read(["text"], ["somebody's"])


def test_how_a_text_is_read_needs_a_text(llama: Any, tokenizer: Any, tmp_path: Path) -> None:
    reading: Any = {"text_field": "body"}
    with pytest.raises(WrongKind):
        evaluate(llama, tokenizer, tasks=["posenc_ppl"], lengths=[TRAINED], **reading)
    with pytest.raises(WrongKind):
        compare(llama, "unpatched", tokenizer=tokenizer, out=tmp_path, **reading)
