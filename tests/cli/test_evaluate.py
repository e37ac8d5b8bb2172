"""`hf-posenc eval`: lm-eval's options on the command line, and options given twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_posenc.cli import main

START = ["eval", "-m", "starter:llama", "-l", "128"]


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_options_reach_the_tasks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = [
        *START, "-t", "posenc_niah_single", "--out", str(out), "--json",
        *(word for one in ("keys=3", "depths=0,1", "limit=2", "log_samples=true", "scoring=generate", "haystack=repeat",
                           "gen_kwargs=max_gen_toks=2", "batch_size=2") for word in ("--set", one)),
    ]  # fmt: skip
    code, shown, err = run(words, capsys)
    assert code == 0, err
    assert {(row["metric"], row["n"]) for row in json.loads(shown)} == {("match", 2), ("part", 2)}
    samples = json.loads(out.read_text())["lm_eval"]["samples"]["posenc_niah_single"]
    assert len(samples) == 2
    assert samples[0]["arguments"][0][1]["max_gen_toks"] == 2
    assert "The grass is green." in samples[0]["arguments"][0][0]
