"""Several documents to measure on: windows are shared out among them and cross none, and tasks say what they read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_posenc.errors import BadComparison, WrongKind
from hf_posenc.eval import compare, evaluate
from hf_posenc.eval.catalogue import check_settings_read
from hf_posenc.eval.texts.measured_text import module_text
from hf_posenc.insight.probe.run import shares
from hf_posenc.texts import TextSource

from .conftest import TRAINED

BOOKS = [module_text("bisect"), "short", module_text("keyword") * 3, ""]
LENGTHS = [64, TRAINED]


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
    check_settings_read(["text"], ["posenc_longctx"])
    check_settings_read(["text"], ["somebody's"])


@pytest.mark.parametrize("reading", [{"text_field": "body"}, {"document_separator": "---"}], ids=str)
def test_how_a_text_is_read_needs_a_text(llama: Any, tokenizer: Any, tmp_path: Path, reading: dict[str, str]) -> None:
    with pytest.raises(WrongKind):
        evaluate(llama, tokenizer, tasks=["posenc_ppl"], lengths=[TRAINED], **reading)
    with pytest.raises(WrongKind):
        compare(llama, "unpatched", tokenizer=tokenizer, out=tmp_path, **reading)
