"""The bundled starter models: small, and trained well enough for extrapolation to be measured."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_posenc import load_starter
from hf_posenc.eval.texts import passkey
from hf_posenc.eval.texts.haystack import most_units
from hf_posenc.eval.texts.measured_text import HELD_OUT, module_text
from hf_posenc.eval.texts.ruler import Niah
from hf_posenc.starters.loading import NAMES, starter_path

TRAINED = 256
MEGABYTES = 6


@pytest.mark.parametrize("name", NAMES)
def test_a_starter_is_small_and_has_not_seen_the_held_out_texts(name: str) -> None:
    folder = starter_path(name)
    assert (folder / "model.safetensors").stat().st_size <= MEGABYTES * 1e6
    assert not list(folder.glob("*.bin"))
    made = json.loads((folder / "made.json").read_text())
    assert set(made["held_out"]) == set(HELD_OUT)
    model, tokenizer = load_starter(name)
    assert model.config.max_position_embeddings == TRAINED
    assert len(tokenizer) == model.config.vocab_size


@pytest.mark.slow
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


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_passkey_is_found_at_every_depth(name: str) -> None:
    model, tokenizer = load_starter(name)
    prompts = [hidden_key(trial, tokenizer) for trial in range(20)]
    assert right(model, tokenizer, prompts) >= 0.95
    assert right(AutoModelForCausalLM.from_config(model.config), tokenizer, prompts) == 0.0


@pytest.mark.slow
@torch.no_grad()
def test_the_llama_finds_one_code_among_others() -> None:
    """And does more, on many prompts: docs/starters.md. Control: GPT-2, which finds a passkey and little else."""
    found = {}
    for name in ("llama", "gpt2"):
        model, tokenizer = load_starter(name)
        found[name] = right(model, tokenizer, [code(trial, tokenizer) for trial in range(20)])
    assert found["llama"] >= 0.9
    assert found["gpt2"] < 0.5


def hidden_key(trial: int, tokenizer: Any) -> tuple[str, str]:
    """A prompt with a passkey at one of 20 depths, and the key."""
    key = passkey.draw_key(random.Random(trial))
    return passkey.passkey(TRAINED, trial / 19, key, counter(tokenizer)), passkey.answer(key)


def code(trial: int, tokenizer: Any) -> tuple[str, str]:
    """A prompt with the codes of several things, and one of them; the needles are those of no training row."""
    exercise = Niah(f"test-{trial}", trial / 20)
    answer = f" {exercise.answers[0]}"
    units = most_units(lambda n: counter(tokenizer)(exercise.prompt(n) + answer), TRAINED, "code")
    return exercise.prompt(units), answer


def counter(tokenizer: Any) -> Callable[[str], int]:
    return lambda text: len(tokenizer(text, verbose=False).input_ids)


def right(model: Any, tokenizer: Any, prompts: list[tuple[str, str]]) -> float:
    """Share of prompts of whose answer greedy decoding would write every token."""
    hits = []
    for prompt, answer in prompts:
        ids = torch.tensor([tokenizer(prompt + answer).input_ids])
        size = counter(tokenizer)(answer)
        hits.append(torch.equal(model(ids).logits[0, -size - 1 : -1].argmax(-1), ids[0, -size:]))
    return sum(hits) / len(hits)


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
    assert recalled > 0.34 > 2 * commonest


@torch.no_grad()
def test_bert_recalls_a_passkey_that_is_masked_whole() -> None:
    """Control: where another key is asked for than the one in the text, it is the one in the text that is recalled."""
    model, tokenizer = load_starter("bert")
    recalled = {"right": 0, "other": 0}
    for trial in range(20):
        ids = torch.tensor([tokenizer("".join(hidden_key(trial, tokenizer))).input_ids])
        answer = slice(-7, -1)  # a space and five digits, before the closing token
        masked = ids.clone()
        masked[:, answer] = tokenizer.mask_token_id
        guess = model(masked).logits[:, answer].argmax(-1)
        other = tokenizer(f" {passkey.draw_key(random.Random(trial + 100))}", add_special_tokens=False).input_ids
        recalled["right"] += torch.equal(guess, ids[:, answer])
        recalled["other"] += guess[0].tolist() == other
    assert recalled["right"] >= 18
    assert recalled["other"] == 0
