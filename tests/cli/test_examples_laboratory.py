"""The recipe of the laboratory models: its rows, its start, and that a training resumes."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from hf_posenc import describe, from_pretrained
from hf_posenc.eval.texts.stdlib_source import module_text
from hf_posenc.eval.texts.vocabulary import coined, number
from hf_posenc.laboratory import laboratory_path

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    """The script, with the modules beside it."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module("train_laboratory")
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def rows(recipe: ModuleType) -> object:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(laboratory_path("rope") / "tokenizer.json"))
    return recipe.Rows(tokenizer, [module_text("abc"), module_text("ast")])


def test_invented_words_and_numbers_are_divided_alike(rows: object) -> None:
    """A word is its syllables, the first of them one token or two; a number its digits."""
    rng = random.Random(0)
    for _ in range(200):
        word = coined(rng)
        *first, second, third, last = rows.tokenizer.encode(f" {word}").tokens
        assert "".join(first).removeprefix("Ġ") == word[:2]
        assert len(first) <= 2
        assert (second, third, last) == (word[2:4], word[4:6], word[6])
        assert len(rows.tokenizer.encode(number(rng)).ids) == 7


def test_every_row_is_full_and_answers_weigh_more(recipe: ModuleType, rows: object) -> None:
    for seed in range(60):
        ids, weights = rows.row(random.Random(seed), seed / 60)
        assert len(ids) == len(weights) == recipe.LENGTH
        assert set(weights) <= {0.0, 1.0, 0.1, recipe.ANSWER}
    ids, weights = rows.tasks(random.Random(1), 0.5)
    answers = rows.tokenizer.decode([i for i, w in zip(ids, weights, strict=True) if w == recipe.ANSWER])
    prompt = rows.tokenizer.decode([i for i, w in zip(ids, weights, strict=True) if w != recipe.ANSWER])
    assert all(word in prompt for word in answers.replace(",", " ").split() if len(word) == 7)


def test_a_row_does_not_depend_on_those_before(rows: object) -> None:
    (third,) = list(rows.batches(2, 3, 4, order=0))
    assert list(rows.batches(2, 0, 4, order=0))[3] == third
    assert list(rows.batches(2, 3, 4, order=1)) != [third]


def test_the_start_copies_and_random_weights_do_not(recipe: ModuleType) -> None:
    torch.manual_seed(0)
    model = recipe.build("rope")
    string = torch.randint(2, 1000, (32, 12))
    before = loss_of_copy(model, string)
    missed = recipe.start_from_induction(model, 0)
    assert missed < 0.25
    assert loss_of_copy(model, string) < before - 0.5


@torch.no_grad()
def loss_of_copy(model: torch.nn.Module, string: torch.Tensor) -> float:
    """Nats/token of a string's repeat."""
    size = string.shape[1]
    logits = model(torch.cat([string, string], dim=1)).logits[:, size:-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), string[:, 1:].flatten()).item()


def test_a_training_resumes_and_is_exported_with_its_scheme(
    recipe: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recipe, "TRAINING", ("abc", "ast"))
    words = ["train_laboratory.py", "t5", "--out", str(tmp_path), "--batch", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--steps", "1"])
    recipe.main()
    monkeypatch.setattr(sys, "argv", [*words, "--steps", "2", "--export", str(tmp_path / "made")])
    recipe.main()
    assert "resumed at step 1" in capsys.readouterr().out
    assert describe(from_pretrained(tmp_path / "made")).scheme == "t5"
