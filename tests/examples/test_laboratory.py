"""The recipe of the laboratory models: a training resumes, and its optimizer is torch's."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

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


@pytest.fixture(scope="module")
def on_gpu(recipe: ModuleType) -> Iterator[ModuleType]:
    """The script for one GPU; what it computes there is tried on the CPU."""
    with example_module("train_laboratory_gpu") as module:
        yield module


def test_matrices_of_one_shape_together_are_as_one_by_one(on_gpu: ModuleType) -> None:
    torch.manual_seed(0)
    start = [torch.randn(shape) for shape in ((48, 48), (96, 48), (48, 96), (48, 48), (8, 48))]
    ours, theirs = ([torch.nn.Parameter(matrix.clone()) for matrix in start] for _ in range(2))
    together = on_gpu.Muon(ours, torch.tensor(1e-3))
    one_by_one = torch.optim.Muon(theirs, lr=1e-3, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        together.step()
        one_by_one.step()
    for one, other, before in zip(ours, theirs, start, strict=True):
        # Both iterate in bfloat16, in another order of products: 0.4 % an operation.
        assert float((one - other).norm() / (other - before).norm()) < 0.05
