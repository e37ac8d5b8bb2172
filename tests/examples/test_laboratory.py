"""The recipe of the laboratory models: its rows, its start, and that a training resumes."""

from __future__ import annotations

import importlib
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from hf_posenc import describe, from_pretrained
from hf_posenc.eval.texts.stdlib_source import module_text
from hf_posenc.starters import starter_path

from ..example_modules import example_module

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recipe() -> Iterator[ModuleType]:
    """The script, with the modules beside it."""
    with example_module("train_laboratory") as module:
        yield module


@pytest.fixture(scope="module")
def rows(recipe: ModuleType) -> object:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(starter_path("llama") / "tokenizer.json"))
    return recipe.Rows(tokenizer, [module_text("abc"), module_text("ast")], recipe.MIXES[1])


def test_every_row_is_full_and_answers_weigh_more(recipe: ModuleType, rows: object) -> None:
    weighty = {importlib.import_module("laboratory_rows").CHOICE, recipe.ANSWER}
    for mix in recipe.MIXES.values():
        assert sum(mix.values()) < 1.0, "the rest are tasks"
        mixed = recipe.Rows(rows.tokenizer, [module_text("abc"), module_text("ast")], mix)
        for seed in range(60):
            ids, weights = mixed.row(random.Random(seed), seed / 60)
            assert len(ids) == len(weights) == recipe.LENGTH
            assert set(weights) <= {0.0, 1.0, 3.0, 0.1, *weighty}
    asking = [rows.kinds[kind] for kind in ("questions", "links", "lists", "people", "rankings")]
    for kind in (lambda rng: rows.tasks(rng, 0.5), *asking):
        ids, weights = kind(random.Random(1))
        answers = rows.tokenizer.decode([i for i, w in zip(ids, weights, strict=True) if w in weighty])
        prompt = rows.tokenizer.decode([i for i, w in zip(ids, weights, strict=True) if w not in weighty])
        found = [word for word in re.split(r"[\s,.]+", answers) if len(word) == 7]
        assert found
        assert all(word in prompt for word in found)


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


def test_a_restored_state_goes_on_as_if_never_stopped(recipe: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    one, optimizers = small()
    for step in range(3):
        take_step(one, optimizers, step)
    recipe.save_state(file, one, optimizers, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]
    two, others = small(seed=1)
    assert recipe.load_state(file, two, others) == 3
    forgetful, fresh = small()
    forgetful.load_state_dict(one.state_dict())
    for step in range(3, 6):
        for model, of_model in ((one, optimizers), (two, others), (forgetful, fresh)):
            take_step(model, of_model, step)
    assert torch.equal(one.weight, two.weight)
    assert not torch.equal(one.weight, forgetful.weight), "control: without what the optimizers remember"


def small(seed: int = 0) -> tuple[torch.nn.Linear, list[torch.optim.Optimizer]]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 4)
    return model, [torch.optim.SGD([model.weight], lr=0.1, momentum=0.9), torch.optim.AdamW([model.bias], lr=0.1)]


def take_step(model: torch.nn.Linear, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    torch.manual_seed(step)
    model(torch.randn(8, 4)).square().sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


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
