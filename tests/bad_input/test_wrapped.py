"""Wrapped and quantised models that are supported compute what the plain one computes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from hf_posenc import describe, is_patched, patch_model, unpatch_model
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.tiny_models import tiny_model


@pytest.mark.parametrize(("name", "scheme"), [("llama", "yarn"), ("llama", "kerple"), ("gpt2", "t5")])
def test_meta_device_defers_the_proof(name: str, scheme: str) -> None:
    """Nothing can be run: the report says that nothing was proven, and every new parameter is on meta as well."""
    model = patch_model(tiny_model(name).to("meta"), scheme)
    assert describe(model).proof.verdict == "deferred"
    assert all(weight.is_meta for weight in model.parameters())
    unpatch_model(model)
    assert not is_patched(model)


@pytest.mark.parametrize("scheme", ["yarn", "t5", "transformer_xl"])
def test_quantised_layers_are_patched(scheme: str) -> None:
    """Dynamic int8, whose layers have no parameters: the same numbers whether patched or quantised first."""
    quantise = partial(torch.ao.quantization.quantize_dynamic, qconfig_spec={nn.Linear}, dtype=torch.qint8)
    ids = random_tokens(tiny_model("llama"), 40)
    torch.manual_seed(0)
    before = patch_model(quantise(tiny_model("llama")), scheme, factor=4)
    torch.manual_seed(0)
    after = quantise(patch_model(tiny_model("llama"), scheme, factor=4))
    assert torch.equal(before(ids).logits, after(ids).logits)
    assert describe(before).proof.verdict == "moved"
