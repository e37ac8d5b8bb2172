"""Bad input that `tests/bad_input` has no row for: its own error type, and the model bit-equal to what it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hf_posenc
from hf_posenc import errors
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.life_cycle import differences, snapshot
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model

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


@pytest.mark.parametrize("name", ["gpt2", "bert", "bert_decoder"])
def test_long_request_on_a_learned_table(name: str) -> None:
    model = hf_posenc.patch_model(tiny_model(name), "learned")
    before = forward(model, random_tokens(model, TRAINED_LENGTH))
    with pytest.raises(errors.PositionOutOfTable, match="32"):
        forward(model, random_tokens(model, 5000))
    assert torch.equal(forward(model, random_tokens(model, TRAINED_LENGTH)), before)
