"""Two processes, one evaluation: the numbers of one, each document scored by one of them, one report."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest

from hf_posenc.eval.texts.measured_text import module_text

from ..processes import finish, launch, start
from .conftest import TRAINED

pytest.importorskip("accelerate", reason="launches are accelerate's")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="process groups are ended by Unix signals"),
]

TWO = ("--multi_gpu", "--num_processes", "2")

PROGRAM = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from hf_posenc.eval import evaluate
from hf_posenc.eval.lm.load import language_model

model, text, out, kind = sys.argv[1:]
tasks = {"causal": ["posenc_ppl", "posenc_token_nll", "posenc_passkey", "posenc_copy"], "masked": ["posenc_mlm"]}
scored = []
lm = language_model(model, None, scheme="alibi", target_length=256, device="cpu")
def note(module, args, options):
    scored.extend(row for row in options["input_ids"].tolist() if len(row) > 1)  # not the steps of generation


lm.model.base_model.register_forward_pre_hook(note, with_kwargs=True)
evaluation = evaluate(
    lm, tasks=tasks[kind], lengths=[128, 256], samples=3, scored=16, keys=3, depths=[0.5], text=text, log_samples=True,
    options={"scoring": "generate"} if kind == "causal" else {},
)
state = {
    "rank": lm.rank, "world": lm.world_size, "scored": scored, "first": evaluation.first,
    "rows": list(map(asdict, evaluation.rows)),
    "samples": {
        task: [sample["doc_id"] for sample in samples] for task, samples in evaluation.raw.get("samples", {}).items()
    },
}
Path(out, f"{lm.rank}.json").write_text(json.dumps(state))
evaluation.save(Path(out, "saved.json"))
"""


@pytest.fixture
def folder(request, tmp_path) -> Path:
    """A saved model with its tokenizer, a text and a program."""
    (tmp_path / "text.txt").write_text(module_text("bisect") * 2, encoding="utf-8")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    for family, tokenizer in (("llama", "tokenizer"), ("bert", "framed_tokenizer")):
        request.getfixturevalue(family).save_pretrained(tmp_path / family)
        request.getfixturevalue(tokenizer).save_pretrained(tmp_path / family)
    return tmp_path


@pytest.mark.parametrize(("family", "kind"), [("llama", "causal"), ("bert", "masked")])
def test_two_processes_are_one_evaluation(family: str, kind: str, folder: Path) -> None:
    words = [str(folder / "program.py"), str(folder / family), str(folder / "text.txt")]
    found = {}
    for name, run in (("one", lambda *w: finish(start(w))), ("two", partial(launch, *TWO))):
        (folder / name).mkdir()
        run(*words, str(folder / name), kind)
        found[name] = [json.loads(p.read_text()) for p in sorted((folder / name).glob("[01].json"))]
    (one,), two = found["one"], found["two"]
    assert [(each["rank"], each["world"]) for each in (one, *two)] == [(0, 1), (0, 2), (1, 2)]
    assert two[0]["rows"] == two[1]["rows"]
    for ours, alone in zip(two[0]["rows"], one["rows"], strict=True):
        assert {**ours, "value": 0, "stderr": 0} == {**alone, "value": 0, "stderr": 0}
        assert ours["value"] == pytest.approx(alone["value"], rel=1e-6)  # a sum in another order
        assert ours["stderr"] == pytest.approx(alone["stderr"], rel=1e-4, abs=1e-9)
    for task, documents in one["samples"].items():
        assert sorted(two[0]["samples"][task]) == sorted(documents) == [0, 1, 2]  # each once
    assert all(each["scored"] for each in two)  # both had work
    assert sorted(two[0]["scored"] + two[1]["scored"]) == sorted(one["scored"])  # nothing twice, nothing left out
    assert [each["first"] for each in two] == [True, False]
    assert json.loads((folder / "two" / "saved.json").read_text())["rows"] == two[0]["rows"]


def test_fewer_documents_than_processes(folder: Path) -> None:
    words = ["--model", str(folder / "llama"), "--lengths", str(TRAINED), "--samples", "1", "--tasks", "posenc_ppl"]
    with pytest.raises(AssertionError, match="1 documents for 2 processes"):
        launch(*TWO, "-m", "hf_posenc.cli", "eval", *words)
