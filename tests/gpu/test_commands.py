"""Commands on a GPU, as a user calls them: each ends well, and with its result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hf_posenc.cli import main

YARN = ("--model", "starter:llama", "--scheme", "yarn", "--factor", "2")


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a command writes with ``--json``."""
    with pytest.raises(SystemExit) as end:
        main([*words, "--json"])
    out, err = capsys.readouterr()
    assert int(end.value.code or 0) == 0, err
    return json.loads(out)


def test_eval(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lm_eval", reason="evaluation needs the extra `eval`")
    small = ("--tasks", "posenc_ppl", "--lengths", "128", "--samples", "2")
    rows = {place: answer(capsys, "eval", *YARN, *small, "--device", place) for place in dict.fromkeys((device, "cpu"))}
    losses = {place: next(row["value"] for row in found if row["metric"] == "nll") for place, found in rows.items()}
    assert losses[device] == pytest.approx(losses["cpu"], rel=1e-3)


def test_finetune(device: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
    settings = ("length=64", "rank=2", "eval_lengths=64", "train_embeddings=false")
    small = [word for pair in settings for word in ("--set", pair)]
    found = answer(capsys, "finetune", *YARN, "--steps", "4", *small, "--out", str(tmp_path / "run"))
    assert found["curve"][-1]["step"] == 4
