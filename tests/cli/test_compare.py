"""``hf-posenc compare``: arguments passed on, output, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hf_posenc.eval
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.rows import Row
from hf_posenc.eval.results.store import Record

from ..eval.made_up import made_up

WORDS = ("compare", "-m", "starter:llama", "-s", "unpatched,yarn:beta_fast=16,ramp=dim", "-s", "self_extend")


def made(*states: str) -> Comparison:
    rows = [Row("m", "s", "posenc_ppl", 256, None, "nll", 2.5, 0.1, 4)]
    records = [
        Record(f"{n}", f"s{n}", "posenc_ppl", 256, state, "It is [red]so[/red]." * (state != "done"),  # type: ignore[arg-type]
               rows if state == "done" else [], 0.0, {})
        for n, state in enumerate(states)
    ]  # fmt: skip
    return made_up(records)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the library was asked, and room for what it answers."""
    seen: dict[str, Any] = {"answer": made("done")}

    def compare(models: list[Any], schemes: str, progress: Callable, **given: Any) -> Comparison:
        progress(0.5, "half")
        seen.update(models=models, schemes=schemes, **given)
        return seen["answer"]

    monkeypatch.setattr(hf_posenc.eval, "compare", compare, raising=False)
    return seen


def test_arguments_become_settings(call: Callable, asked: dict[str, Any]) -> None:
    words = ("-l", "256,512", "-l", "1k", "--tasks", "posenc_ppl,posenc_passkey", "--against", "self_extend")
    more = ("longest=2048", "depths=[0,1]", "question_tokens=200")
    answer = call(*WORDS, *words, "--out", "o", "--json", *(word for one in more for word in ("--set", one)))
    assert answer.code == 0, answer.err
    assert asked["schemes"] == "unpatched,yarn:beta_fast=16,ramp=dim,self_extend"
    settings = asked["settings"]
    assert settings.lengths == (256, 512, 1024)
    assert settings.tasks == ("posenc_ppl", "posenc_passkey")
    assert (settings.depths, settings.longest, settings.against) == ((0.0, 1.0), 2048, "self_extend")
    assert settings.options == {"question_tokens": 200}
    (model,) = asked["models"]
    assert model.shown_name == "starter:llama"
    assert model.arguments == {"dtype": "float32", "batch_size": 1}  # of a starter
    assert answer.data["rows"][0]["value"] == 2.5


def test_a_file_sets_what_the_command_line_overrides(call: Callable, asked: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: starter:llama\nschemes: [pi, yarn]\nlengths: [256, 512]\nkeys: 3\ndepths: [0.5]\nscoring: generate\n"
    )
    answer = call("compare", "--config", str(file), "-l", "128")
    assert answer.code == 0, answer.err
    settings = asked["settings"]
    assert (settings.lengths, settings.keys, settings.depths) == ((128,), 3, (0.5,))
    assert (asked["schemes"], settings.options) == ("pi,yarn", {"scoring": "generate"})


def test_the_command_repeats_itself(call: Callable, asked: dict[str, Any]) -> None:
    import shlex

    call(*WORDS, "-l", "256,512", "--set", "seed=7", "--tune", "--budget", "4", "--out", "o u t", "--json")
    first = asked["command"]
    again = shlex.split(first)
    assert again[0] == "hf-posenc"
    assert "--json" not in again
    before = {name: value for name, value in asked.items() if name != "answer"}
    call(*again[1:])
    assert {name: value for name, value in asked.items() if name != "answer"} == before


@pytest.mark.parametrize(
    ("states", "code"),
    [(["done"], 0), (["done", "refused"], 3), (["done", "failed"], 1), (["refused", "failed"], 1), (["refused"], 3)],
)
def test_exit_codes(call: Callable, asked: dict[str, Any], states: list[str], code: int) -> None:
    asked["answer"] = made(*states)
    answer = call(*WORDS)
    assert answer.code == code
    assert ("It is [red]so[/red]." in answer.out) == (code != 0)  # as it is, not as markup
    assert ("2.500 ± 0.100" in answer.out) == ("done" in states)
    assert answer.err == "half: 50 %\n"


def test_a_starter_is_compared(call: Callable, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="an extra")
    pytest.importorskip("matplotlib", reason="an extra")
    words = ("compare", "-m", "starter:llama", "-s", "unpatched,learned_hier", "-l", "128", "-t", "posenc_ppl")
    answer = call(*words, "--samples", "2", "--out", str(tmp_path), "--json")
    assert answer.code == 3
    assert [cell["state"] for cell in answer.data["cells"]] == ["done", "refused"]
    saved = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert saved == answer.data
    assert saved["about"]["model"] == "starter:llama"
    assert 0.5 < answer.data["rows"][0]["value"] < 6.0
    assert "learned_hier: refused" in (tmp_path / "page.html").read_text(encoding="utf-8")
