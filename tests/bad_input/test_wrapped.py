"""Rows 22 and 23 where they are supported: a wrapped model computes what the plain one computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hf_posenc
from hf_posenc import (
    describe,
    is_patched,
    patch_model,
    unpatch_model,
)
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.tiny_models import tiny_model

from .wrapped import Whole


def compiled_layers(model: Any) -> nn.Module:
    """Every block by itself, as some serving code does."""
    for number, layer in enumerate(model.model.layers):
        model.model.layers[number] = torch.compile(layer, backend="eager")
    return model


def compiled_in_place(model: nn.Module) -> nn.Module:
    """Compiled without a wrapper."""
    model.compile(backend="eager")
    return model


WRAPPED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compiled": lambda model: torch.compile(model, backend="eager"),  # type: ignore[dict-item,return-value]
    "compiled in place": compiled_in_place,
    "compiled layer by layer": compiled_layers,
    "DataParallel": nn.DataParallel,
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_wrapped_model_is_patched_whole(wrap: Callable[[nn.Module], nn.Module]) -> None:
    inner = tiny_model("llama")
    ids = random_tokens(inner, 40)
    model = wrap(inner)
    plain = model(ids).logits  # compiled before it is patched
    expected = patch_model(tiny_model("llama"), "yarn", factor=4)(ids).logits
    patch_model(model, "yarn", factor=4)
    assert torch.equal(model(ids).logits, expected)
    assert not torch.allclose(plain, expected), "control: the scheme shows"
    unpatch_model(model)
    assert torch.equal(model(ids).logits, plain)


def test_reducer_without_new_parameters() -> None:
    """A scheme without parameters leaves nothing behind that `DistributedDataParallel` should know."""
    model = Whole(tiny_model("llama"))
    assert describe(patch_model(model, "yarn", factor=4)).scheme == "yarn"


@pytest.mark.parametrize("scheme", ["yarn", "alibi", "kerple", "t5"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_meta_device_defers_the_proof(name: str, scheme: str) -> None:
    """Nothing can be run: the report says that nothing was proven, and every new parameter is on meta as well."""
    if (name, scheme) == ("gpt2", "yarn"):
        scheme = "rope"
    model = patch_model(tiny_model(name).to("meta"), scheme)
    assert describe(model).proof.verdict == "deferred"
    assert all(weight.is_meta for weight in model.parameters())
    unpatch_model(model)
    assert not is_patched(model)


def test_quantised_layers_are_patched() -> None:
    """Dynamic int8: the scheme has the numbers of a patched model that is quantised afterwards."""
    quantise = torch.ao.quantization.quantize_dynamic
    ids = random_tokens(tiny_model("llama"), 40)
    before = patch_model(quantise(tiny_model("llama"), {nn.Linear}, dtype=torch.qint8), "yarn", factor=4)
    after = quantise(patch_model(tiny_model("llama"), "yarn", factor=4), {nn.Linear}, dtype=torch.qint8)
    assert torch.equal(before(ids).logits, after(ids).logits)
    assert hf_posenc.describe(before).proof.verdict == "moved"
