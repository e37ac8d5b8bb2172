"""Wrapped and quantised models that are supported compute what the plain one computes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

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


class Buffered(nn.Module):
    """A linear layer as GPTQ and AWQ leave it: its packed weight is a buffer."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("qweight", linear.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.qweight)


def test_packed_weights_in_buffers() -> None:
    """A learned scheme is drawn where such layers compute."""
    model, plain = tiny_model("llama"), tiny_model("llama")
    for layer in model.model.layers:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, name, Buffered(layer.self_attn.get_submodule(name)))
    ids = random_tokens(plain, 40)
    for one in (model, plain):
        torch.manual_seed(0)
        patch_model(one, "kerple", factor=4)
    assert torch.equal(model(ids).logits, plain(ids).logits)
