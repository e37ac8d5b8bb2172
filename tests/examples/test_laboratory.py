"""The recipe of the laboratory models: a training resumes, and its optimizer is torch's."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hf_posenc import describe, from_pretrained

from ..example_modules import example_module

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recipe() -> Iterator[ModuleType]:
    """The script, with the modules beside it."""
    with example_module("train_laboratory") as module:
        yield module


def test_a_training_resumes_and_is_exported_with_its_scheme(
    recipe: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recipe, "TRAINING", ("abc", "ast"))
    monkeypatch.setattr(importlib.import_module("laboratory_start"), "ROUNDS", 2)
    words = ["train_laboratory.py", "t5", "--out", str(tmp_path), "--batch", "1", "--steps", "2", "--save-every", "1"]
    monkeypatch.setattr(sys, "argv", words)
    with monkeypatch.context() as killed:
        killed.setattr(recipe.Run, "abilities", interrupt)
        with pytest.raises(KeyboardInterrupt):
            recipe.main()
    monkeypatch.setattr(sys, "argv", [*words, "--export", str(tmp_path / "made")])
    recipe.main()
    assert "resumed at step 1" in capsys.readouterr().out
    assert describe(from_pretrained(tmp_path / "made")).scheme == "t5"
    made = json.loads((tmp_path / "made" / "made.json").read_text())
    assert made["command"].endswith("train_laboratory.py t5 --mix 1 --steps 2 --lr 0.001 --seed 0 --batch 1")
    monkeypatch.setattr(sys, "argv", [*words, "--seed", "1"])
    with pytest.raises(SystemExit, match=r"is of «python examples/train_laboratory.py t5 .*--seed 0 .*another --out"):
        recipe.main()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt
