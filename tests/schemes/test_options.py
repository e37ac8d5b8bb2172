"""Options mean what the documentation says, are shown, and are followed where one changes after the patch."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import hf_posenc
from hf_posenc import describe, patch_model, set_factor
from hf_posenc.checks.forward import config_of, forward, random_tokens
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.patching.state import scheme_of
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.memo import MEMOS

from ..small_models import llama

BLOCK = "position_scheme"


def test_two_buckets_tell_a_token_from_those_before() -> None:
    model = hf_posenc.patch_model(tiny_model("llama"), "t5", num_buckets=2, max_distance=2)
    scheme: Any = hf_posenc.scheme_of(model)
    assert scheme.bucket(torch.arange(-2, 5)).tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_a_factor_is_rounded_to_whole_tokens() -> None:
    model = hf_posenc.patch_model(tiny_model("llama"), "pi", factor=1.0000001)
    assert hf_posenc.describe(model).target_length == TRAINED_LENGTH
    tokens = random_tokens(model, TRAINED_LENGTH)
    torch.testing.assert_close(forward(model, tokens), forward(tiny_model("llama"), tokens), rtol=0, atol=1e-5)


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


def test_options_that_differ_from_their_defaults_are_shown() -> None:
    model = patch_model(tiny_model("llama"), "yarn+logn", factor=4, beta_fast=16, beta_slow=1)
    lengths = f"trained_length={TRAINED_LENGTH}, target_length={4 * TRAINED_LENGTH}"
    assert describe(model).scheme == "yarn+logn"
    assert str(describe(model)).splitlines()[0].endswith("with yarn(beta_fast=16.0)+logn")
    assert f"Yarn(yarn, factor=4.0, {lengths}, beta_fast=16.0)" in repr(scheme_of(model))
    assert f"LogN(logn, factor=4.0, {lengths})" in repr(scheme_of(copy.deepcopy(model)))
    set_factor(model, 2)
    assert f"factor=2.0, trained_length={TRAINED_LENGTH}, target_length={2 * TRAINED_LENGTH}, beta_fast=16.0" in repr(
        scheme_of(model)
    )


def test_options_of_single_layers_are_shown() -> None:
    model = patch_model(tiny_model("llama"), "yarn", factor=4, layers={"0": ("window", {"size": 8})})
    assert describe(model).layers == {"0": "window(size=8)"}


def logits(model: Any) -> torch.Tensor:
    """Of a prefill and of decoding."""
    tokens, cache = torch.arange(29)[None], DynamicCache()
    with torch.no_grad():
        first = model(tokens[:, :26], past_key_values=cache).logits
        rest = [model(tokens[:, n : n + 1], past_key_values=cache).logits for n in range(26, 29)]
    return torch.cat([first, *rest], dim=1)


@pytest.mark.parametrize(
    ("name", "part", "option", "value"),
    [
        ("rerope", 1, "window", 3),
        ("string", 1, "local", 2),
        ("yarn+rerope", 1, "window", 3),
        ("rope+alibi", 1, "interpolate", 4.0),
        ("yarn", 0, "attention_factor", 1.5),
        ("rope", 0, "base", 50.0),
    ],
)
def test_an_option_changed_after_patching_is_followed(name: str, part: int, option: str, value: float) -> None:
    """As if the value had been there before anything was computed."""
    used, fresh = (patch_model(llama(), name, **({"factor": 2} if "yarn" in name else {})) for _ in range(2))
    before = logits(used)
    for model in (used, fresh):
        setattr(model.model.layers[0].self_attn.scheme.schemes[part], option, value)
    after = logits(used)
    assert torch.equal(after, logits(fresh))
    assert not torch.equal(after, before)


def test_what_is_kept_goes_when_a_part_changes() -> None:
    scheme: Scheme = patch_model(llama(), "rerope").model.layers[0].self_attn.scheme
    assert scheme.memoized("answer", lambda: 1) == 1
    assert scheme.memoized("answer", lambda: 2) == 1
    scheme.schemes[0].note = "a part's"  # type: ignore[assignment]
    assert scheme.memoized("answer", lambda: 2) == 2
    scheme.note = "its own"  # type: ignore[assignment]
    assert scheme.memoized("answer", lambda: 3) == 3


def test_a_copy_keeps_its_own() -> None:
    model = patch_model(llama(), "rerope")
    before, apart = logits(model), copy.deepcopy(model)
    scheme = apart.model.layers[0].self_attn.scheme
    assert not any(name in vars(part) for part in (scheme, *scheme.schemes) for name in MEMOS)
    assert not any(name.encode() in pickle.dumps(model) for name in MEMOS)
    scheme.schemes[1].window = 3
    assert not torch.equal(logits(apart), before)
    assert torch.equal(logits(model), before)
