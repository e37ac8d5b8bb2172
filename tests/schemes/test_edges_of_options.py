"""Options at the edge of their range and in other notations mean what the documentation says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hf_posenc
from hf_posenc.checks.forward import config_of, forward, random_tokens
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.schemes.options import PositiveInt, declared

BLOCK = "position_scheme"


def logits(scheme: Any, model: str = "llama", **options: Any) -> Tensor:
    """Of a text of twice the trained length."""
    patched = hf_posenc.patch_model(tiny_model(model), scheme, **options)
    return forward(patched, random_tokens(patched, 2 * TRAINED_LENGTH))


def test_two_buckets_tell_a_token_from_those_before() -> None:
    model = hf_posenc.patch_model(tiny_model("llama"), "t5", num_buckets=2, max_distance=2)
    scheme: Any = hf_posenc.scheme_of(model)
    assert scheme.bucket(torch.arange(-2, 5)).tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_a_factor_is_rounded_to_whole_tokens() -> None:
    model = hf_posenc.patch_model(tiny_model("llama"), "pi", factor=1.0000001)
    assert hf_posenc.describe(model).target_length == TRAINED_LENGTH
    tokens = random_tokens(model, TRAINED_LENGTH)
    torch.testing.assert_close(forward(model, tokens), forward(tiny_model("llama"), tokens), rtol=0, atol=1e-5)


def test_no_single_layers_are_all_alike() -> None:
    assert torch.equal(logits("yarn", factor=2, layers={}), logits("yarn", factor=2))


@pytest.mark.parametrize("written", ["yarn\n", " yarn ", "\tyarn", ["yarn"], ("yarn",)])
def test_blanks_around_a_name_are_no_part_of_it(written: Any) -> None:
    model = hf_posenc.patch_model(tiny_model("llama"), written, factor=2)
    assert vars(config_of(model))[BLOCK]["scheme"] == [{"name": "yarn", "options": {}}]


def test_numbers_of_numpy_are_saved(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    model = hf_posenc.patch_model(tiny_model("llama"), "yarn", factor=numpy.float64(2.0), beta_fast=numpy.float64(30.0))
    model.save_pretrained(tmp_path)
    loaded = hf_posenc.from_pretrained(tmp_path)
    assert torch.equal(
        forward(loaded, random_tokens(model, TRAINED_LENGTH)), forward(model, random_tokens(model, TRAINED_LENGTH))
    )


def test_what_is_kept_of_a_constructor_is_found_again() -> None:
    def constructor(self: object, geometry: object, *, width: PositiveInt = 3) -> None: ...

    first = declared(constructor)
    assert declared(constructor) is first
    assert list(first[1].model_fields) == ["width"]
