"""lm-eval's own command line with our model types and tasks, from a file's path and by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_posenc.errors import RequestTooLong
from hf_posenc.eval import TASKS
from hf_posenc.eval.__main__ import main, with_our_tasks

from .conftest import TRAINED

LIMIT = 1200
"""Seconds; a start takes ten on an idle machine, most of it lm-eval's scan of its own ten thousand tasks."""


@pytest.fixture
def folder(llama, tokenizer, tmp_path) -> Path:
    llama.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    metadata = {"lengths": [100, TRAINED], "samples": 2, "scored": 16, "keys": 1, "depths": [0.5]}
    given = ["--model", "hf_posenc", "--model_args", "pretrained=model,scheme=yarn,factor=2", "--device", "cpu"]
    more = ["--metadata", json.dumps(metadata), "--output_path", "out"]
    return subprocess.run(
        [sys.executable, *words, *given, *more], capture_output=True, text=True, timeout=LIMIT, check=False, cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip


def results(folder: Path, done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr[-3000:]
    (found,) = (folder / "out").rglob("results_*.json")
    return json.loads(found.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_stock_command_with_the_path_of_a_task_and_names(folder: Path) -> None:
    tasks = f"{TASKS / 'posenc_token_nll.yaml'},posenc_ppl"
    output = results(folder, command(folder, "-m", "lm_eval", "--include_path", str(TASKS), "--tasks", tasks))
    assert set(output["results"]) == {"posenc_token_nll", "posenc_ppl"}
    assert f"nll_L{TRAINED},none" in output["results"]["posenc_token_nll"]
    assert (output["config"]["posenc_scheme"], output["config"]["posenc_factor"]) == ("yarn", 2.0)
    assert output["config"]["max_length"] == 2 * TRAINED
    assert output["configs"]["posenc_ppl"]["metadata"]["lengths"] == [100, TRAINED]


@pytest.mark.slow
def test_our_command_knows_names(folder: Path) -> None:
    output = results(folder, command(folder, "-m", "hf_posenc.eval", "--tasks", "posenc_passkey"))
    assert f"acc_L{TRAINED}_D50,none" in output["results"]["posenc_passkey"]


def test_a_refusal_is_two_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a traceback through lm-eval."""
    import lm_eval.__main__

    def refuse() -> None:
        raise RequestTooLong("A request is too long. Shorten it.")

    monkeypatch.setattr(lm_eval.__main__, "cli_evaluate", refuse)
    monkeypatch.setattr(sys, "argv", ["lm_eval"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == "Error: A request is too long. Shorten it."  # which Python writes to stderr, code 1


def test_arguments_are_passed_on() -> None:
    assert with_our_tasks(["ls", "tasks"]) == ["ls", "tasks", "--include_path", str(TASKS)]
    assert with_our_tasks(["--include_path", "x"]) == ["--include_path", "x"]
    assert with_our_tasks(["--include_path=x"]) == ["--include_path=x"]
    assert with_our_tasks([]) == []
