"""The laboratory models: able at retrieval within their length."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_posenc import describe, from_pretrained
from hf_posenc.checkpoints.tokenizer import load_tokenizer
from hf_posenc.errors import UnknownStarter
from hf_posenc.eval.texts import passkey
from hf_posenc.eval.texts.fit_length import most_units
from hf_posenc.eval.texts.needles import Niah
from hf_posenc.eval.texts.stdlib_source import HELD_OUT
from hf_posenc.laboratory import NAMES, laboratory_path

TRAINED = 256
MEGABYTES = 12
PROMPTS = 20


DECODERS = tuple(name for name in NAMES if name != "bert")
COMMANDS = {"bert": "train_laboratory_bert.py "} | {name: f"train_laboratory_gpu.py {name} " for name in DECODERS}


def test_the_models_are_small_and_document_their_training() -> None:
    folders = [laboratory_path(name) for name in NAMES]
    assert sum(file.stat().st_size for folder in folders for file in folder.iterdir()) <= MEGABYTES * 1e6
    for name, folder in zip(NAMES, folders, strict=True):
        made = json.loads((folder / "made.json").read_text())
        assert made["command"].startswith(f"python examples/{COMMANDS[name]}")
        assert set(made["held_out"]) == set(HELD_OUT)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_carries_its_scheme(name: str) -> None:
    model = from_pretrained(f"laboratory:{name}")
    assert model.dtype == torch.float32
    assert model.config.max_position_embeddings == TRAINED
    if name not in ("rope", "bert"):
        assert describe(model).scheme == name


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UnknownStarter, match="train_laboratory"):
        laboratory_path("rop")  # type: ignore[arg-type]


@torch.no_grad()
@pytest.mark.parametrize("draw", [pytest.param(0, id="passkey"), pytest.param(1, id="one code among others")])
@pytest.mark.parametrize("name", DECODERS)
def test_keys_are_found_within_the_trained_length(name: str, draw: int) -> None:
    tokenizer = load_tokenizer(str(laboratory_path(name)))
    prompts = [(hidden_key, code)[draw](number, tokenizer) for number in range(PROMPTS)]
    model = from_pretrained(f"laboratory:{name}")
    assert right(model, tokenizer, prompts) >= 0.9  # and more on many prompts: docs/starters.md
    untrained = AutoModelForCausalLM.from_config(from_pretrained("laboratory:rope").config)
    assert right(untrained, tokenizer, prompts) == 0.0


@torch.no_grad()
def test_bert_recalls_a_passkey_that_is_masked_whole() -> None:
    tokenizer = load_tokenizer(str(laboratory_path("bert")))
    able, starter = from_pretrained("laboratory:bert"), from_pretrained("starter:bert")
    right = {"able": 0, "starter": 0}
    for number in range(PROMPTS):
        ids = torch.tensor([tokenizer("".join(hidden_key(number, tokenizer))).input_ids])
        answer = slice(-7, -1)  # a space and five digits, before the closing token
        masked = ids.clone()
        masked[:, answer] = tokenizer.mask_token_id
        for name, model in (("able", able), ("starter", starter)):
            right[name] += torch.equal(model(masked).logits[:, answer].argmax(-1), ids[:, answer])
    assert right["able"] >= 0.9 * PROMPTS
    assert right["starter"] <= 0.1 * PROMPTS, "control: a model that recalls single digits alone"


def hidden_key(number: int, tokenizer: Any) -> tuple[str, str]:
    """A prompt with a passkey, and the key."""
    key = passkey.draw_key(random.Random(number))
    found = passkey.passkey(TRAINED, number / PROMPTS, key, counter(tokenizer))
    return found.prompt, found.answer


def code(number: int, tokenizer: Any) -> tuple[str, str]:
    """A prompt with the codes of several things, and one of them; the needles are those of no training row."""
    exercise = Niah(f"test-{number}", number / PROMPTS)
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
        size = len(tokenizer(answer).input_ids)
        hits.append(torch.equal(model(ids).logits[0, -size - 1 : -1].argmax(-1), ids[0, -size:]))
    return sum(hits) / len(hits)
