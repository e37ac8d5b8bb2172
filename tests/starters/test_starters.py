"""The bundled starter models: small, and trained well enough for extrapolation to be measured."""

from __future__ import annotations

import json
import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_posenc import load_starter
from hf_posenc.eval.texts import passkey
from hf_posenc.eval.texts.stdlib_source import HELD_OUT, TRAINING, module_text
from hf_posenc.starters.loading import NAMES, starter_path

TRAINED = 256
MEGABYTES = 6


@pytest.mark.parametrize("name", NAMES)
def test_a_starter_is_small_and_documents_its_training(name: str) -> None:
    folder = starter_path(name)
    assert (folder / "model.safetensors").stat().st_size <= MEGABYTES * 1e6
    assert not list(folder.glob("*.bin"))
    made = json.loads((folder / "made.json").read_text())
    assert all(command.startswith(f"python examples/train_starters.py {name}") for command in made["commands"])
    assert set(made["held_out"]) == set(HELD_OUT)
    model, tokenizer = load_starter(name)
    assert model.config.max_position_embeddings == TRAINED
    assert len(tokenizer) == model.config.vocab_size


def test_training_and_test_modules_are_disjoint() -> None:
    assert not set(TRAINING) & set(HELD_OUT)
    assert all(module_text(name) for name in HELD_OUT)


@torch.no_grad()
def test_the_llama_loss_rises_beyond_the_trained_length() -> None:
    """Figures on this interpreter's own text; `examples/measure_starters.py` measures them on more of it."""
    model, tokenizer = load_starter("llama")
    ids = torch.tensor(tokenizer(module_text("statistics")).input_ids[: 12 * 2 * TRAINED]).view(12, 2 * TRAINED)
    within, beyond = loss_of_last(model, ids[:, TRAINED:]), loss_of_last(model, ids)
    untrained = AutoModelForCausalLM.from_config(model.config)
    assert within < 3.5 < 7.0 < loss_of_last(untrained, ids[:, TRAINED:])
    assert beyond > within + 1.0


def loss_of_last(model: torch.nn.Module, ids: torch.Tensor, last: int = 64) -> float:
    """Mean nats of the last tokens of every row."""
    logits = model(ids).logits[:, -last - 1 : -1].float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, -last:].flatten()).item()


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_passkey_is_found_at_every_depth(name: str) -> None:
    model, tokenizer = load_starter(name)
    rng = random.Random(5)
    found = []
    for trial in range(20):
        drill = passkey.passkey(TRAINED, trial / 19, passkey.draw_key(rng), lambda text: len(tokenizer(text).input_ids))
        ids = torch.tensor([tokenizer(drill.prompt + drill.answer).input_ids])
        guess = model(ids).logits[0, -len(tokenizer(drill.answer).input_ids) - 1 : -1].argmax(-1)
        found.append(bool((guess == ids[0, -len(guess) :]).all()))
    assert sum(found) >= 19, found  # 95 %


@torch.no_grad()
def test_bert_recalls_masked_tokens_of_held_out_text() -> None:
    """Control: the commonest token is right far less often."""
    model, tokenizer = load_starter("bert")
    ids = torch.tensor(tokenizer(module_text("statistics"), add_special_tokens=False).input_ids[: 16 * (TRAINED - 2)])
    rows = ids.view(16, -1)
    edges = (torch.full((16, 1), tokenizer.cls_token_id), torch.full((16, 1), tokenizer.sep_token_id))
    rows = torch.cat([edges[0], rows, edges[1]], dim=1)
    hidden = torch.rand(rows.shape, generator=torch.Generator().manual_seed(0)) < 0.15
    hidden[:, [0, -1]] = False
    guesses = model(rows.masked_fill(hidden, tokenizer.mask_token_id)).logits[hidden].argmax(-1)
    recalled = (guesses == rows[hidden]).float().mean().item()
    commonest = (rows[hidden] == rows[hidden].mode().values).float().mean().item()
    assert recalled > 0.38 > 2 * commonest


@torch.no_grad()
def test_bert_recalls_a_masked_digit_of_the_passkey() -> None:
    """One digit masked at a time. Chance is a tenth."""
    model, tokenizer = load_starter("bert")
    rng = random.Random(6)
    right = 0
    for trial in range(20):
        drill = passkey.passkey(TRAINED, trial / 19, passkey.draw_key(rng), lambda text: len(tokenizer(text).input_ids))
        ids = torch.tensor(tokenizer(drill.prompt + drill.answer).input_ids)
        digits = torch.arange(len(ids) - 6, len(ids) - 1)  # the five digits, before the closing <sep>
        rows = ids.repeat(5, 1)
        rows[torch.arange(5), digits] = tokenizer.mask_token_id
        right += int((model(rows).logits[torch.arange(5), digits].argmax(-1) == ids[digits]).sum())
    assert right >= 60, right  # of 100
