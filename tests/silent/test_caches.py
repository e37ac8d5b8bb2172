"""Outputs of transformers that silently depend on the cache or the batch; ours do not."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers.cache_utils import StaticCache

from hf_posenc import patch_model
from hf_posenc.errors import InvalidInput, UnknownKeys

from .still import APART, CLOSE, TEXT, TRAINED, continued, deviation, gpt2, llama, logits_of, scaled, silent

DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": TRAINED, "short_factor": [1.0] * 4,
    "long_factor": [1.0, 2.0, 3.0, 4.0],
}  # fmt: skip


def test_a_cache_across_the_trained_length() -> None:
    with silent("transformers", "longrope keeps keys that were turned for another length"):
        model = scaled(**LONGROPE)
        assert deviation(continued(model, TRAINED - 2), logits_of(model)[:, -1]) > APART
    model = patch_model(llama(), "longrope", factor=4, short_factor=[1.0] * 4, long_factor=[1.0, 2.0, 3.0, 4.0])
    assert deviation(continued(model, TRAINED - 2), logits_of(model)[:, -1]) < CLOSE


def test_dynamic_frequencies_and_the_cache() -> None:
    """Token by token, every key stays as its own step turned it."""

    def stepwise(model: torch.nn.Module) -> torch.Tensor:
        cache, logits = None, None
        with torch.no_grad():
            for step in range(TEXT.shape[1]):
                out = model(TEXT[:, step : step + 1], past_key_values=cache, use_cache=True)
                cache, logits = out.past_key_values, out.logits
        return logits[:, -1]

    def dynamic() -> torch.nn.Module:
        return llama(rope_parameters={**DYNAMIC, "rope_theta": 10000.0})

    with silent("transformers", "dynamic NTK computes something else token by token than at once"):
        assert deviation(stepwise(dynamic()), logits_of(dynamic())[:, -1]) > APART
    model = patch_model(llama(), "dynamic_ntk", factor=4)
    assert deviation(stepwise(model), logits_of(model)[:, -1]) < CLOSE


def test_padding_on_the_left_moves_a_table() -> None:
    """GPT-2 counts positions from the first column, padding included."""
    short = TEXT[:, : TRAINED - 4]
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), short), dim=-1)
    mask = torch.ones_like(padded)
    mask[:, :4] = 0
    with silent("transformers", "GPT-2 without position_ids reads a text padded on the left at other positions"):
        assert deviation(logits_of(gpt2(), padded, attention_mask=mask)[:, 4:], logits_of(gpt2(), short)) > APART
    for scheme in ("learned", "sinusoidal", "t5"):
        model = patch_model(gpt2(), scheme, factor=1)
        assert deviation(logits_of(model, padded, attention_mask=mask)[:, 4:], logits_of(model, short)) < CLOSE


def test_an_ignored_bias() -> None:
    """Keywords an attention function does not know are dropped; whoever passes a bias so changes nothing."""
    with silent("transformers", "attention drops a position_bias it is given"):
        model = llama(attn_implementation="eager")
        bias = torch.randn(1, 4, 4 * TRAINED, 4 * TRAINED)
        assert torch.equal(logits_of(model, position_bias=bias), logits_of(model))
    eager, sdpa = (patch_model(llama(attn_implementation=name), "alibi", factor=4) for name in ("eager", "sdpa"))
    assert deviation(logits_of(eager), logits_of(llama())) > APART
    assert deviation(logits_of(eager), logits_of(sdpa)) < CLOSE


def test_a_cache_of_another_model() -> None:
    """Keys that were turned by other angles are taken as they come; ours knows whose they are."""
    ids, first = TEXT[:, :12], TEXT[:, :11]
    other = scaled(rope_type="linear", factor=4.0)
    with silent("transformers", "a cache of another model is continued"):
        foreign = other(ids[:, 11:], past_key_values=llama()(first, use_cache=True).past_key_values).logits[:, -1]
    assert deviation(foreign, logits_of(other, ids)[:, -1]) > APART

    ours = patch_model(llama(), "pi", factor=4)
    with pytest.warns(UnknownKeys, match="11 tokens"):
        ours(ids[:, 11:], past_key_values=llama()(first, use_cache=True).past_key_values)
    held = patch_model(llama(), "pi", factor=2)(first, use_cache=True).past_key_values
    with pytest.raises(InvalidInput, match=r"11 tokens .+ another scheme, or under other options"):
        ours(ids[:, 11:], past_key_values=held)


@pytest.mark.filterwarnings("error::hf_posenc.errors.UnknownKeys")
@torch.no_grad()
def test_a_cache_of_the_same_scheme() -> None:
    """Control: a copy of the model goes on where the first one stopped, and an emptied cache is anybody's."""
    ids, first = TEXT[:, :12], TEXT[:, :11]
    one, two = patch_model(llama(), "pi", factor=4), patch_model(llama(), "yarn", factor=4)
    held = one(first, use_cache=True).past_key_values
    last = copy.deepcopy(one)(ids[:, 11:], past_key_values=copy.deepcopy(held)).logits[:, -1]
    assert deviation(last, logits_of(one, ids)[:, -1]) < CLOSE
    static = StaticCache(config=one.config, max_cache_len=12)
    one(first, past_key_values=static)
    static.reset()
    assert deviation(two(ids, past_key_values=static).logits, logits_of(two, ids)) < CLOSE
