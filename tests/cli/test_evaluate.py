"""`hf-posenc eval`: lm-eval's options on the command line, and options given twice."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Call


def test_options_reach_the_tasks(call: Call, tmp_path: Path) -> None:
    settings = ("keys=3", "depths=0,1", "limit=2", "log_samples=true", "scoring=generate", "haystack=repeat",
                "gen_kwargs=max_gen_toks=2", "batch_size=2")  # fmt: skip
    out = tmp_path / "out.json"
    words = ("eval", "-m", "starter:llama", "-l", "128", "-t", "posenc_niah_single", "--out", str(out), "--json")
    answer = call(*words, *(word for one in settings for word in ("--set", one)))
    assert answer.code == 0, answer.err
    assert {(row["metric"], row["n"]) for row in answer.data} == {("match", 2), ("part", 2)}
    samples = json.loads(out.read_text())["lm_eval"]["samples"]["posenc_niah_single"]
    assert len(samples) == 2
    assert samples[0]["arguments"][0][1]["max_gen_toks"] == 2
    assert "The grass is green." in samples[0]["arguments"][0][0]
