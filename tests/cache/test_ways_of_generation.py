"""Ways to generate in plain transformers choose the tokens of greedy decoding, under patched and exported models.

Chunked prefill, assisted decoding by another model, by the first layers and by the prompt, static caches and continuous
batching.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from hf_posenc import export, patch_model
from hf_posenc.checks.case import perturb_parameters
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.generation import NEW, generate_batch, generate_tokens
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import BackendCannotCarry

WAYS: dict[str, dict[str, Any]] = {
    "chunks": {"prefill_chunk_size": 7},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "assistant": {},
    "static": {"cache_implementation": "static"},
    "static in chunks": {"cache_implementation": "static", "prefill_chunk_size": 7},
    "continuous": {},
}
ON_BOTH = ("yarn", "dynamic_yarn", "alibi", "t5", "fire", "nope", "xpos", "shaw", "cope", "fox")
ON_LLAMA = ("window", "sinks", "rerope", "logn")
ON_GPT2 = ("learned_interp", "sinusoidal")
PADDED = ("t5", "xpos", "cope", "fox", "window", "sinks", "rerope", "logn")
REFUSED: dict[tuple[str, str], tuple[Any, str]] = {
    **{(scheme, way): ((ValueError, BackendCannotCarry), "crop") for scheme in ("window", "sinks")
       for way in ("prompt lookup", "assistant")},  # transformers itself from 5.24 on
    ("fox", "continuous"): (BackendCannotCarry, "no room"),
}  # fmt: skip
PLAIN: dict[str, Any] = {"do_sample": False, "min_new_tokens": NEW, "pad_token_id": 0, "eos_token_id": 96}


@cache
def patched(family: str, scheme: str) -> PreTrainedModel:
    model = patch_model(tiny_model(family), scheme, factor=4)
    perturb_parameters(model)
    return model


def prompt_of(model: PreTrainedModel) -> Tensor:
    """A text longer than the trained length that repeats itself, so that a prompt can be looked up in it."""
    return random_tokens(model, 5).repeat(1, 20)[:, : TRAINED_LENGTH + 6]


@cache
def greedy(family: str, scheme: str) -> Tensor:
    return generate_tokens(patched(family, scheme), prompt_of(patched(family, scheme)))


def generated(model: PreTrainedModel, family: str, way: str) -> Tensor:
    prompt = prompt_of(model)
    if way == "continuous":
        return torch.tensor([prompt[0].tolist() + generate_batch(model, prompt.tolist())[0].generated_tokens])
    assistant = {"assistant_model": patched(family, "nope")} if way == "assistant" else {}
    return generate_tokens(model, prompt, **WAYS[way], **assistant)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("family", "scheme"),
    [("llama", name) for name in (*ON_BOTH, *ON_LLAMA)]
    + [pytest.param("gpt2", name, marks=() if name == "alibi" else pytest.mark.slow) for name in (*ON_BOTH, *ON_GPT2)],
)
def test_the_tokens_of_greedy_decoding(family: str, scheme: str, way: str) -> None:
    model = patched(family, scheme)
    refusal = REFUSED.get((scheme, way))
    if refusal is None:
        assert torch.equal(generated(model, family, way), greedy(family, scheme))
        return
    with pytest.raises(refusal[0], match=refusal[1]):
        generated(model, family, way)


@pytest.mark.parametrize("way", ["chunks", "static", "static in chunks"])
@pytest.mark.parametrize(
    "scheme", ["dynamic_yarn", "alibi", *(pytest.param(name, marks=pytest.mark.slow) for name in PADDED)]
)
def test_padded_rows(scheme: str, way: str) -> None:
    """Of two texts, the shorter one is padded on the left, and continued as it is alone."""
    model = patched("llama", scheme)
    text = prompt_of(model)
    tokens, mask = torch.cat((text, text.roll(11, dims=1))), torch.ones(2, text.shape[1], dtype=torch.long)
    mask[1, :11] = 0
    found = model.generate(tokens, attention_mask=mask, max_new_tokens=NEW, **PLAIN, **WAYS[way])
    assert torch.equal(found[:1], generate_tokens(model, text))
    assert torch.equal(found[1:, 11:], generate_tokens(model, tokens[1:, 11:]))


def test_a_model_without_the_scheme_chooses_other_tokens() -> None:
    """A control: what is compared depends on the scheme, and on the text before the last chunk."""
    model, plain = patched("llama", "alibi"), tiny_model("llama")
    prompt, expected = prompt_of(model), generate_tokens(model, prompt_of(model))
    assert not torch.equal(generate_tokens(plain, prompt), expected)
    assert not torch.equal(generate_tokens(model, prompt[:, -7:])[:, -NEW:], expected[:, -NEW:])


@pytest.mark.filterwarnings("ignore::hf_posenc.errors.EngineDiffers", "ignore::hf_posenc.errors.ReadOtherwise")
@pytest.mark.parametrize("scheme", ["yarn", "none"])
def test_exported_models(scheme: str, tmp_path: Path) -> None:
    model = patched("llama", scheme)
    export(model, tmp_path / "plain")
    there = AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval()
    expected = generate_tokens(model, prompt_of(model))
    for way in WAYS:
        assert torch.equal(generated(there, "llama", way), expected), way


def whole_forwards(model: torch.nn.Module, ids: Tensor) -> Tensor:
    """Greedy tokens, each from a forward pass over all tokens before it."""
    with torch.no_grad():
        for _ in range(NEW):
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    return ids


@pytest.mark.parametrize("scheme", ["yarn", "alibi", "dynamic_ntk", "sinks", "fox"])
def test_drafts_of_the_first_layer_change_no_token(scheme: str) -> None:
    model = tiny_model("llama")
    layers = model.config.num_hidden_layers
    model.generation_config.eos_token_id = None
    patch_model(model, scheme, factor=2) if scheme in ("yarn", "dynamic_ntk") else patch_model(model, scheme)
    ids = torch.randint(3, 96, (1, 12), generator=torch.Generator().manual_seed(3))
    drafted = model.generate(ids, max_new_tokens=NEW, do_sample=False, assistant_early_exit=1)
    assert drafted.tolist() == whole_forwards(model, ids).tolist()
    assert model.config.num_hidden_layers == layers  # transformers leaves it lowered where drafting raises
