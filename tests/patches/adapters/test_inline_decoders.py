"""BLOOM, MPT and Falcon in all their layouts: every hook of a scheme, every way to call, the model's own outputs."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import StaticCache

from hf_posenc import describe, from_pretrained, patch_model, unpatch_model

from .inline import VARIANTS, ids, logits, tiny_inline

CLOSE = 2e-5  # of the spread of logits, in float32
TEXT = ids()

variants = pytest.mark.parametrize("variant", VARIANTS)


def gap(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.std())


def padded(tokens: Tensor, by: int = 5) -> tuple[Tensor, Tensor]:
    """Left-padded ids and their mask."""
    padding = torch.zeros(len(tokens), by, dtype=torch.long)
    return torch.cat((padding, tokens), 1), torch.cat((padding, torch.ones_like(tokens)), 1)


@variants
def test_the_models_own_positions(variant: str) -> None:
    """At once, left-padded and from a cache; unpatched, everything is as before."""
    model = tiny_inline(variant)
    tokens, mask = padded(TEXT)
    stock, stock_padded = logits(model, TEXT), logits(model, tokens, attention_mask=mask)
    patch_model(model, "host")
    assert describe(model).proof.verdict == "identity"
    assert gap(logits(model, TEXT), stock) < CLOSE
    assert gap(logits(model, tokens, attention_mask=mask)[:, 5:], stock_padded[:, 5:]) < CLOSE
    cache = None
    for start in range(0, TEXT.shape[1], 8):
        with torch.no_grad():
            out = model(TEXT[:, start : start + 8], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        assert gap(out.logits, stock[:, start : start + 8]) < CLOSE
    unpatch_model(model)
    assert torch.equal(logits(model, TEXT), stock)
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("posenc")]


@variants
def test_nothing_is_left_of_the_models_own_positions(variant: str) -> None:
    """In one layer without positions, the last token does not know the order of those before it."""
    model, other = tiny_inline(variant, layers=1), TEXT[:, [2, 0, 1, 3]]
    assert gap(logits(model, other)[:, -1], logits(model, TEXT[:, :4])[:, -1]) > 0.01, "control: the model's own"
    patch_model(model, "none")
    assert gap(logits(model, other)[:, -1], logits(model, TEXT[:, :4])[:, -1]) < CLOSE


@variants
@pytest.mark.parametrize("scheme", ["host", "yarn", "alibi", "sinks"])
def test_a_static_cache(variant: str, scheme: str) -> None:
    model = patch_model(tiny_inline(variant), scheme, trained_length=16, factor=4)
    whole, cache = logits(model, TEXT), StaticCache(config=model.config, max_cache_len=80)
    parts = [logits(model, TEXT[:, :30], past_key_values=cache)]
    parts += [logits(model, TEXT[:, at : at + 1], past_key_values=cache) for at in range(30, TEXT.shape[1])]
    assert gap(torch.cat(parts, 1), whole) < CLOSE


@variants
def test_weights_and_states(variant: str) -> None:
    """Attention weights and hidden states come in the model's own form, whatever the backend."""
    model = tiny_inline(variant)
    own = model(TEXT, output_hidden_states=True)
    patch_model(model, "host")
    out = model(TEXT, output_attentions=True, output_hidden_states=True)
    assert gap(out.logits, own.logits) < CLOSE
    assert [gap(*pair) < CLOSE for pair in zip(out.hidden_states, own.hidden_states, strict=True)] == [True] * 3
    assert [weights.shape for weights in out.attentions] == [(2, 4, *2 * TEXT.shape[1:])] * 2
    for weights in out.attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        assert not weights.triu(1).any()
    assert isinstance(model(TEXT, return_dict=False), tuple)
    unpatch_model(model)
    patch_model(model, "t5")
    assert len(model(TEXT, output_attentions=True).attentions) == 2


@variants
def test_the_base_model_alone(variant: str, tmp_path: Path) -> None:
    """It is the very module that changes its class; files, copies and pickles name the model's own."""
    base = tiny_inline(variant).base_model
    own = type(base)
    patch_model(base, "t5")
    wanted = base(TEXT).last_hidden_state
    base.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [own.__name__]
    for other in (from_pretrained(tmp_path), copy.deepcopy(base), pickle.loads(pickle.dumps(base))):
        assert gap(other.eval()(TEXT).last_hidden_state, wanted) < CLOSE
        unpatch_model(other)
        assert type(other) is own
    unpatch_model(base)
    assert type(base) is own


def test_gradient_checkpointing() -> None:
    """What is computed again in the backward pass has the same positions."""
    gradients: list[Tensor] = []
    for checkpointing in (False, True):
        model = patch_model(tiny_inline("bloom"), "alibi", slopes="learned").train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        tokens, mask = padded(TEXT)
        model(tokens, attention_mask=mask, labels=tokens).loss.backward()
        gradients.append(model.base_model.posenc.log_slopes.grad)
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().max() > 0
