"""Bad input that `tests/bad_input` has no row for: its own error type, and the model bit-equal to what it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import MistralConfig, MistralModel

import hf_posenc
from hf_posenc import errors
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.life_cycle import differences, snapshot
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model

SIZES = ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_key_value_heads")
BAD: dict[str, tuple[str, type[Exception], str, dict[str, Any]]] = {
    "positions that one layer does not move": (
        *("llama", errors.CannotCombine, "rope+randpos"),
        {"layers": {"0": "none"}},
    ),
    "positions that one layer moves": ("llama", errors.CannotCombine, "rope", {"layers": {"0": "rope+randpos"}}),
    "option of no part": ("llama", errors.UnknownOption, "yarn+logn", {"windw": 3}),
    "option of another type": ("llama", errors.OptionOutOfRange, "yarn", {"truncate": "no"}),
    "two remaps": ("llama", errors.CannotCombine, "rerope+self_extend", {}),
    "nothing to remap": ("gpt2", errors.SchemeNotDefined, "rerope", {}),
    "target below trained": ("llama", errors.LengthContradiction, "yarn", {"target_length": 8}),
}


@pytest.mark.parametrize("name", BAD)
def test_refused_and_unchanged(name: str) -> None:
    kind, error, scheme, options = BAD[name]
    model = tiny_model(kind)
    before = snapshot(model, random_tokens(model, TRAINED_LENGTH))
    with pytest.raises(error):
        hf_posenc.patch_model(model, scheme, **options)
    assert differences(before, snapshot(model, random_tokens(model, TRAINED_LENGTH))) == (0.0, "nothing")


def test_a_list_of_models_is_refused() -> None:
    config = MistralConfig(**dict.fromkeys(SIZES, 8), num_hidden_layers=1)
    with pytest.raises(errors.UnsupportedModel):
        hf_posenc.patch_model(nn.ModuleList(MistralModel(config) for _ in "ab"), "yarn")


@pytest.mark.parametrize("name", ["gpt2", "bert", "bert_decoder"])
def test_long_request_on_a_learned_table(name: str) -> None:
    model = hf_posenc.patch_model(tiny_model(name), "learned")
    before = forward(model, random_tokens(model, TRAINED_LENGTH))
    with pytest.raises(errors.PositionOutOfTable, match="32"):
        forward(model, random_tokens(model, 5000))
    assert torch.equal(forward(model, random_tokens(model, TRAINED_LENGTH)), before)


@pytest.mark.parametrize("name", ["gpt2", "bert", "bert_decoder"])
@pytest.mark.parametrize("width", [3, 9])
def test_mask_of_wrong_width(name: str, width: int) -> None:
    model = hf_posenc.patch_model(tiny_model(name), "alibi", factor=2)
    with pytest.raises(errors.MaskMismatch, match=str(width)):
        forward(model, random_tokens(model, 6), attention_mask=torch.ones(1, width, dtype=torch.long))
