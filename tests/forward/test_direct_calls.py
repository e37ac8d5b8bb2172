"""Calls of ``base.forward(…)`` itself, as sentence-transformers 6 makes them, are calls of the base model."""

from __future__ import annotations

import inspect

import pytest
import torch
from transformers import BertModel, LlamaModel

from hf_posenc import patch_model, unpatch_model
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.tiny_models import tiny_model

PADS = 9


@torch.no_grad()
@pytest.mark.parametrize("scheme", ["dynamic_ntk", "sinks", "jet_long", "sinusoidal"])
def test_left_padding_changes_nothing(scheme: str) -> None:
    model = patch_model(tiny_model("llama"), scheme, **({} if scheme in ("sinks", "sinusoidal") else {"factor": 4}))
    tokens = random_tokens(model, 40)
    padded = torch.nn.functional.pad(tokens, (PADS, 0))
    mask = (torch.arange(padded.shape[1]) >= PADS).long().expand_as(padded)
    found = model.model.forward(padded, attention_mask=mask, sentence_embedding=torch.ones(1)).last_hidden_state
    assert (found[:, PADS:] - model.model(tokens).last_hidden_state).abs().max() < 1e-4


@torch.no_grad()
def test_texts_past_the_buffers_of_an_encoder() -> None:
    base = patch_model(tiny_model("bert"), "learned_interp", factor=2).bert
    tokens = random_tokens(base, 50)
    assert torch.equal(base.forward(tokens).last_hidden_state, base(tokens).last_hidden_state)


def test_the_class_keeps_its_name_and_its_signature_and_is_given_back() -> None:
    model = patch_model(tiny_model("llama"), "yarn", factor=4)
    assert str(type(model.model)) == str(LlamaModel)  # transformers keeps a registry by these
    assert inspect.signature(model.model.forward) == inspect.signature(tiny_model("llama").model.forward)
    unpatch_model(model)
    assert type(model.model) is LlamaModel
    assert type(unpatch_model(patch_model(tiny_model("bert"), "alibi")).bert) is BertModel
