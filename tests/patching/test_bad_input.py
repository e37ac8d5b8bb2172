"""Bad input: its own error type, two sentences, and the model bit-equal to what it was."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import partial
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
TWO_SENTENCES = re.compile(r"^\S.+[.?!)] \S.+[.?!)…]$", re.DOTALL)


def patching(scheme: Any, **options: Any) -> Callable[[nn.Module], object]:
    return lambda model: hf_posenc.patch_model(model, scheme, **options)


# name: (model, error type, what the message says, what is done)
BAD: dict[str, tuple[str, type[Exception], str, Callable[[Any], object]]] = {
    "misspelt scheme": ("llama", errors.UnknownScheme, "Did you mean 'yarn'", patching("yarm")),
    "empty scheme": ("llama", errors.UnknownScheme, "''", patching("")),
    "no scheme": ("llama", errors.UnknownScheme, "None", patching(None)),
    "a number for a scheme": ("llama", errors.UnknownScheme, "7", patching(7)),
    "an empty list": ("llama", errors.UnknownScheme, r"\[\]", patching([])),
    "positions that one layer does not move": (
        "llama",
        errors.CannotCombine,
        "where tokens stand",
        patching("rope+randpos", layers={"0": "none"}),
    ),
    "positions that one layer moves": (
        "llama",
        errors.CannotCombine,
        "where tokens stand",
        patching("rope", layers={"0": "rope+randpos"}),
    ),
    "half a composition": ("llama", errors.UnknownScheme, "''", patching("yarn+")),
    "factor below one": ("llama", errors.LengthContradiction, "at least 1, got 0.5", patching("yarn", factor=0.5)),
    "negative factor": ("llama", errors.LengthContradiction, "got -2", patching("yarn", factor=-2)),
    "factor no number": ("llama", errors.LengthContradiction, "nan", patching("yarn", factor=float("nan"))),
    "infinite factor": ("llama", errors.LengthContradiction, "inf", patching("yarn", factor=float("inf"))),
    "true for a factor": ("llama", errors.LengthContradiction, "True", patching("yarn", factor=True)),
    "text for a factor": ("llama", errors.LengthContradiction, "'8'", patching("yarn", factor="8")),
    "contradicting lengths": (
        *("llama", errors.LengthContradiction, "but target_length is 100"),
        patching("yarn", factor=8, target_length=100),
    ),
    "target below trained": ("llama", errors.LengthContradiction, "got 8", patching("yarn", target_length=8)),
    "target of a length": ("llama", errors.LengthContradiction, "64.0", patching("yarn", target_length=64.0)),
    "trained length of zero": ("llama", errors.LengthContradiction, "got 0", patching("yarn", trained_length=0)),
    "misspelt option": ("llama", errors.UnknownOption, "Did you mean 'beta_fast'", patching("yarn", beta_fst=1)),
    "option of no part": ("llama", errors.UnknownOption, "windw", patching("yarn+logn", windw=3)),
    "option out of range": ("llama", errors.OptionOutOfRange, "'beta_fast'", patching("yarn", beta_fast=-1.0)),
    "option of another type": ("llama", errors.OptionOutOfRange, "'truncate'", patching("yarn", truncate="no")),
    "option no number": ("llama", errors.OptionOutOfRange, "beta_fast", patching("yarn", beta_fast=float("nan"))),
    "bounds the wrong way round": (
        *("llama", errors.OptionOutOfRange, "beta_fast must be greater"),
        patching("yarn", beta_fast=1.0, beta_slow=2.0),
    ),
    "window of everything": (
        "llama",
        errors.OptionOutOfRange,
        "smaller than",
        patching("rerope", window=TRAINED_LENGTH),
    ),
    "two rotations": ("llama", errors.CannotCombine, "Keep one", patching("rope+yarn")),
    "two remaps": ("llama", errors.CannotCombine, "Keep one", patching("rerope+self_extend")),
    "layer that is not there": ("llama", errors.OptionOutOfRange, "'9'", patching("yarn", layers={9: "none"})),
    "layer named twice": (
        *("llama", errors.OptionOutOfRange, "layer 1 twice"),
        patching("yarn", layers={"1": "none", "::1": "rope"}),
    ),
    "not defined for an encoder": ("bert", errors.SchemeNotDefined, "decoder", patching("rope+dca", factor=2)),
    "nothing to remap": ("gpt2", errors.SchemeNotDefined, "rope[+]rerope", patching("rerope")),
    "learned table past its end": (
        *("gpt2", (errors.OptionOutOfRange, errors.PositionOutOfTable), "32"),
        patching("learned", target_length=5000),
    ),
    "unpatch of nothing": ("llama", errors.NotPatched, "no scheme", hf_posenc.unpatch_model),
    "description of nothing": ("llama", errors.NotPatched, "no scheme", hf_posenc.describe),
}  # type: ignore[assignment]


@pytest.mark.parametrize("name", BAD)
def test_refused_and_unchanged(name: str) -> None:
    kind, error, says, do = BAD[name]
    model = tiny_model(kind)
    before = snapshot(model, random_tokens(model, TRAINED_LENGTH))
    with pytest.raises(error, match=says) as caught:
        do(model)
    assert TWO_SENTENCES.match(str(caught.value)), caught.value
    assert isinstance(caught.value, errors.PosEncError)
    assert differences(before, snapshot(model, random_tokens(model, TRAINED_LENGTH))) == (0.0, "nothing")


@pytest.mark.parametrize("scheme", ["yarn", "alibi"])
def test_a_second_patch_is_refused_and_changes_nothing(scheme: str) -> None:
    model = hf_posenc.patch_model(tiny_model("llama"), "yarn", factor=2)
    before = snapshot(model, random_tokens(model, TRAINED_LENGTH))
    with pytest.raises(errors.AlreadyPatched, match=r"'yarn' already\. .+"):
        hf_posenc.patch_model(model, scheme, factor=4)
    assert differences(before, snapshot(model, random_tokens(model, TRAINED_LENGTH))) == (0.0, "nothing")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 2), "No attention of this Linear goes through the AttentionInterface"),
        ("a/path", "A live model is needed, got 'a/path'"),
        (tiny_model("llama").config, "A live model is needed, got LlamaConfig"),
        (None, "A live model is needed, got None"),
        (
            nn.ModuleList(MistralModel(MistralConfig(**dict.fromkeys(SIZES, 8), num_hidden_layers=1)) for _ in "ab"),
            "holds several models that read tokens",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unsupported_class(model: Any, message: str) -> None:
    with pytest.raises(errors.UnsupportedModel, match=message) as caught:
        hf_posenc.patch_model(model, "yarn")
    assert TWO_SENTENCES.match(str(caught.value))


@pytest.mark.parametrize("name", ["gpt2", "bert", "bert_decoder"])
def test_long_request_on_a_learned_table(name: str) -> None:
    model = hf_posenc.patch_model(tiny_model(name), "learned")
    before = forward(model, random_tokens(model, TRAINED_LENGTH))
    with pytest.raises(errors.PositionOutOfTable, match="past the 32 positions") as caught:
        forward(model, random_tokens(model, 5000))
    assert TWO_SENTENCES.match(str(caught.value))
    assert torch.equal(forward(model, random_tokens(model, TRAINED_LENGTH)), before)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "bert_decoder"])
@pytest.mark.parametrize("width", [3, 9])
def test_mask_of_wrong_width(name: str, width: int) -> None:
    model = hf_posenc.patch_model(tiny_model(name), "alibi", factor=2)
    with pytest.raises(errors.MaskMismatch, match=f"{width} wide for 6 tokens") as caught:
        forward(model, random_tokens(model, 6), attention_mask=torch.ones(1, width, dtype=torch.long))
    assert TWO_SENTENCES.match(str(caught.value))


def test_foreign_forward() -> None:
    model = tiny_model("llama")
    attention = model.model.layers[1].self_attn
    attention.forward = partial(attention.forward)
    before = snapshot(model, random_tokens(model, TRAINED_LENGTH))
    with pytest.raises(errors.ForeignPatch, match="forward of its own") as caught:
        hf_posenc.patch_model(model, "yarn", factor=2)
    assert TWO_SENTENCES.match(str(caught.value))
    assert differences(before, snapshot(model, random_tokens(model, TRAINED_LENGTH))) == (0.0, "nothing")


def test_backend_without_support_for_a_bias() -> None:
    model = hf_posenc.patch_model(tiny_model("llama"), "alibi", factor=2)
    model.base_model.config._attn_implementation = "flash_attention_2"
    for layer in model.model.layers:
        layer.self_attn.config = model.base_model.config
    attention, hidden = model.model.layers[0].self_attn, torch.zeros(1, 4, 64)
    with pytest.raises(errors.BackendCannotCarry, match="flash_attention_2") as caught:
        attention(hidden, position_ids=torch.arange(4)[None])
    assert TWO_SENTENCES.match(str(caught.value))


def test_model_that_is_scaled_already() -> None:
    config = copy.deepcopy(tiny_model("llama").config)
    config.rope_parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}
    model = type(tiny_model("llama"))(config).eval()
    before = snapshot(model, random_tokens(model, TRAINED_LENGTH))
    with pytest.raises(errors.AlreadyScaled, match="linear") as caught:
        hf_posenc.patch_model(model, "yarn", factor=4)
    assert TWO_SENTENCES.match(str(caught.value))
    assert differences(before, snapshot(model, random_tokens(model, TRAINED_LENGTH))) == (0.0, "nothing")
